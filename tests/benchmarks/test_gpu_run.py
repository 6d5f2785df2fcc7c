"""What `benchmarks/gpu_run.py` packs and asks for, without a network and without a GPU."""

import gpu_run
import pytest

pytestmark = pytest.mark.study


def test_what_was_packed_into_parts_comes_out_of_them_whole(tmp_path):
    content, parts = tmp_path / "base", tmp_path / "parts"
    (content / "site").mkdir(parents=True)
    (content / "site" / "module.py").write_bytes(bytes(range(256)) * 40)
    parts.mkdir()
    (parts / "base-07").write_text("of an earlier packing")
    gpu_run.write_parts(content, parts, part=100)
    sizes = [path.stat().st_size for path in sorted(parts.iterdir())]
    assert len(sizes) > 1 and set(sizes[:-1]) == {100} and sizes[-1] <= 100
    gpu_run.unpack(parts)
    assert (parts / "site" / "module.py").read_bytes() == (content / "site" / "module.py").read_bytes()


@pytest.mark.parametrize(
    ("packages", "are_left_out"),
    [("systemd_255 libllvm20_1 python3.12_3", True), ("libsystemd0_255 xvfb_2 libglib2.0-bin_2", False)],
)
def test_what_a_desktop_does_not_need_is_left_out(packages, are_left_out):
    assert {bool(gpu_run.LEFT_OUT.match(f"{package}_amd64.deb")) for package in packages.split()} == {are_left_out}


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_options_for_a_gpu_compose(engine, tmp_path):
    from arpo_verl.tools.cli.composing import compose_recipe

    options = gpu_run.overrides(engine, True, tmp_path, tmp_path, steps=2, smoke=True)
    config = compose_recipe(gpu_run.ROOT / "recipes" / "demo.yaml", options)
    assert config.actor_rollout_ref.rollout.name == engine and config.trainer.device == "cuda"
