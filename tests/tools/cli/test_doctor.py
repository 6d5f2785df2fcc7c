"""`arpo-verl doctor --task-dir`: which tasks this machine can run, and what the others lack."""

import importlib.machinery
import importlib.util
import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.task_files import GOOD, spec, write

pytest.importorskip("desktop_env")

from arpo_verl import versions  # noqa: E402
from arpo_verl.engines.upstream_patches import all_patches  # noqa: E402
from arpo_verl.errors import MissingDependencyError  # noqa: E402
from arpo_verl.plugin.recipe.footprint import model_shape  # noqa: E402
from arpo_verl.tasks.loader import EMBEDDED_DIR  # noqa: E402
from arpo_verl.tools.cli.checks import packages  # noqa: E402
from arpo_verl.tools.cli.composing import compose_recipe  # noqa: E402
from arpo_verl.tools.cli.main import main  # noqa: E402
from arpo_verl.tools.cli.recipes import recipes_folder  # noqa: E402
from arpo_verl.versions import NEWEST, TESTED, TRAINED, require_verl  # noqa: E402


@pytest.fixture
def task_dir(tmp_path):
    launch = [{"type": "launch", "parameters": {"command": ["no-such-program"]}}]
    tasks = {
        "fine": {"config": []},
        "program": {"config": launch},
        "other-program": {"config": launch},
        "metric": {"config": [], "evaluator": {**GOOD["evaluator"], "func": "exakt_match"}},
    }
    for name, changes in tasks.items():
        write(tmp_path / f"{name}.json", spec(id=name, **changes))
    write(tmp_path / "torn.json", '{"id": "torn", ')
    return tmp_path


def test_each_task_is_named_with_what_is_missing(task_dir, capsys):
    assert main(["doctor", "--task-dir", str(task_dir)]) == 1
    printed = capsys.readouterr().out
    assert "[ok  ] fine\n" in printed and "1 of 5 tasks can run on this machine" in printed
    assert "[FAIL] program\n       -> the program no-such-program (apt-get install no-such-program)" in printed
    assert "torn.json\n       -> not JSON" in printed
    assert "did you mean exact_match?" in printed
    # The summary counts tasks by reason, the most frequent first.
    summary = printed.split("can run on this machine\n")[1].splitlines()
    assert summary[0].split()[0] == "2" and "no-such-program" in summary[0] and len(summary) == 3


def test_the_report_as_tables(task_dir, capsys):
    main(["doctor", "--task-dir", str(task_dir), "--markdown"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert "| fine | yes |  |" in rows and any("metric.json (task metric) | no | " in row for row in rows)


def test_a_machine_that_can_run_every_task_passes(capsys):
    assert main(["doctor", "--task-dir", str(EMBEDDED_DIR)]) == 0
    assert "32 of 32 tasks can run" in capsys.readouterr().out


def test_a_virtual_machine_has_the_programs_but_not_the_metrics(task_dir, capsys):
    assert main(["doctor", "--task-dir", str(task_dir), "--provider", "docker"]) == 1
    printed = capsys.readouterr().out
    assert "3 of 5 tasks can run" in printed and "no-such-program" not in printed


def test_nothing_heavy_is_imported_to_look_at_tasks(task_dir):
    code = (
        "import sys; from arpo_verl.tools.cli.main import main; main(sys.argv[1:]); "
        "print([name for name in ('torch', 'transformers', 'verl', 'ray', 'desktop_env') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, "doctor", "--task-dir", str(task_dir)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1] == "[]"


def test_what_gpus_need_is_named_with_its_use_and_how_to_get_it(monkeypatch):
    installed = {"TransferQueue": "0.1.9", "vllm": "0.21.3", "cupy-cuda13x": "14.0.1"}
    monkeypatch.setattr(packages, "installed_version", installed.get)
    findings = {finding.subject: finding for finding in packages.check_versions()}
    queue, vllm, flash, cupy = (findings[name] for name in ("TransferQueue", "vllm", "flash-attn", "cupy-cuda13x"))
    assert queue.required and not queue.ok and "0.1.10 or newer" in queue.detail
    assert not vllm.ok and not vllm.required and "0.22.0 or newer" in vllm.detail
    assert not flash.ok and "log-probs" in flash.detail
    first, second = flash.remedy.removeprefix("with Python 3.12: ").split(" && ")
    tools = "wheel setuptools ninja packaging psutil"
    assert first == f"pip install {tools} 'verl[vllm]==0.9.1'"  # torch, which the build of the next one imports
    assert second == "pip install --no-build-isolation 'verl[vllm,fsdp]==0.9.1'"
    assert cupy.ok and "osworld_full_async" in cupy.detail


def test_what_is_newer_than_all_that_trained_is_said_in_one_line(monkeypatch):
    installed = {**TRAINED, "torch": f"{NEWEST['torch']}+cu140"}
    monkeypatch.setattr(versions, "installed_version", installed.get)
    newest = f"newest in training: {TRAINED['torch']}, in tests: {NEWEST['torch']}"
    line = f"untested in training: torch {NEWEST['torch']}+cu140 ({newest})"
    assert versions.describe_untested() == line
    (finding,) = [finding for finding in packages.check_versions() if finding.subject == "versions"]
    assert finding.ok and finding.detail == line
    monkeypatch.setattr(versions, "installed_version", {**TRAINED, "ray": "2.41"}.get)
    assert versions.describe_untested() is None


GPU_PACKAGES = {"TransferQueue": "0.1.10", "vllm": "0.24.0", "flash-attn": "2.8.3", "cupy-cuda12x": "14.0.1"}
PADDING = "actor_rollout_ref.model.use_remove_padding=true"


@pytest.mark.parametrize(
    ("recipe", "overrides", "needed"),
    [
        ("embedded", [], {"TransferQueue"}),
        ("embedded", [PADDING], {"TransferQueue", "flash-attn"}),
        ("osworld_full", [], {"TransferQueue", "vllm", "flash-attn"}),
        ("osworld_full_async", [], {"TransferQueue", "vllm", "flash-attn", "cupy-cuda13x"}),
    ],
)
def test_what_a_recipe_cannot_do_without_is_required(monkeypatch, recipe, overrides, needed):
    config = compose_recipe(recipes_folder() / f"{recipe}.yaml", overrides)
    monkeypatch.setattr(packages, "installed_version", {}.get)
    findings = packages.check_recipe_packages(config)
    assert {finding.subject for finding in findings if finding.required and not finding.ok} == needed
    assert all("pip install" in finding.remedy for finding in findings)
    monkeypatch.setattr(packages, "installed_version", GPU_PACKAGES.get)
    assert all(finding.ok for finding in packages.check_recipe_packages(config))


def test_a_recipe_whose_packages_are_missing_fails_here_and_is_noted_for_other_nodes(monkeypatch, capsys):
    monkeypatch.setattr(packages, "installed_version", {**GPU_PACKAGES, "vllm": None, "flash-attn": None}.get)
    assert main(["doctor", "--recipe", "osworld_full"]) == 1
    printed = capsys.readouterr().out
    assert "[FAIL] vllm: not installed; needed for actor_rollout_ref.rollout.name=vllm" in printed
    assert printed.count("-> with Python 3.12") == 1, "for both"
    main(["doctor", "--recipe", "osworld_full", "--gpu-gb", "80"])
    assert "[note] vllm: not installed" in capsys.readouterr().out


OTHERS = {  # files below verl/trainer -> what they show it to be
    ("main.py", "config.py", "ray_trainer.py"): "EasyR1",
    ("main.py", "config.py", "replay_buffer.py"): "the ARPO reference, a fork of EasyR1",
    ("engine.py",): "another project of that name",
}


@pytest.fixture(params=OTHERS, ids=" ".join)
def other_verl(request, tmp_path, monkeypatch):
    """A package of veRL's name on the path, found as `import verl` would; what it is."""
    (tmp_path / "verl" / "trainer").mkdir(parents=True)
    for name in ("__init__.py", *(f"trainer/{name}" for name in request.param)):
        (tmp_path / "verl" / name).touch()
    spec = importlib.machinery.PathFinder.find_spec("verl", [str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    return OTHERS[request.param]


@pytest.mark.parametrize("installed", ["0.3.3.dev0", None])  # None: a clone on the path, as their scripts run it
def test_another_package_of_verls_name_is_named_and_not_to_be_overwritten(other_verl, installed, monkeypatch):
    monkeypatch.setattr(packages, "installed_version", {"verl": installed}.get)
    findings = [*packages.check_versions(), *packages.check_registrations()]
    (verl,) = (finding for finding in findings if finding.subject == "verl")
    assert other_verl in verl.detail and (installed or "not installed") in verl.detail
    if other_verl == "EasyR1":  # which has a door of its own
        assert verl.ok and "python -m arpo_verl.easyr1" in verl.detail
    else:
        assert not verl.ok and "separate environment" in verl.remedy
    # Nor does what else is missing tell to install veRL, or the torch that it needs, over theirs.
    assert not [finding for finding in findings if not finding.ok and "pip install" in finding.detail + finding.remedy]
    with pytest.raises(MissingDependencyError, match="would overwrite") as refusal:
        require_verl()
    assert other_verl in str(refusal.value) and "pip install" not in str(refusal.value)


@pytest.mark.parametrize(
    ("transformers", "fits"), [("4.53.0", False), ("4.57.6", True), ("5.0.0", False), (None, False)]
)
def test_beside_easyr1_it_says_what_its_door_has_and_lacks(monkeypatch, transformers, fits):
    there = {"transformers": transformers, "torch": "2.8.0", "ray": "2.60.0", "verl": "0.3.3.dev0"}
    monkeypatch.setattr(packages, "installed_version", there.get)
    monkeypatch.setattr(packages, "another_verl", lambda: packages.EASYR1)
    found = {finding.subject: finding for finding in packages.check_versions()}
    assert found["transformers"].ok is fits and found["torch"].ok and found["verl"].ok
    assert not found["vllm"].ok and "EasyR1's README" in found["vllm"].remedy
    assert all(finding.ok for finding in packages.check_registrations())


def test_a_recipe_is_estimated_and_what_does_not_fit_is_shown(capsys, model_path, monkeypatch):
    assert main(["doctor", "--recipe", "osworld_full", "+policy=qwen3_vl", "--node-gb", "400", "--gpu-gb", "24"]) == 1
    printed = capsys.readouterr().out
    assert "Qwen/Qwen3-VL-8B-Instruct, 8.77 B parameters, a step of 128 episodes" in printed
    assert "15 x (2,040 + 16)" in printed and "desktops: 64 x 5.3 GB" in printed
    assert "does not fit: host memory, " in printed and " of 400 GB\n       -> lower data.train_batch_size" in printed
    assert "does not fit: GPU memory, " in printed and " of 24 GB\n" in printed
    assert main(["doctor", "--recipe", "embedded", f"actor_rollout_ref.model.path={model_path}"]) == 0
    printed = capsys.readouterr().out
    assert "364 x 252 pixels" in printed and "x (117 + 16)" in printed and "the recipe passes every check" in printed
    monkeypatch.setattr(packages, "installed_version", {}.get)
    assert main(["doctor", "--recipe", "embedded", f"actor_rollout_ref.model.path={model_path}"]) == 1
    assert capsys.readouterr().out.endswith("\n1 of 1 checks failed\n"), "nothing passes below a failure"


def test_a_recipe_that_cannot_be_estimated_is_reported(capsys, tmp_path):
    assert main(["doctor", "--recipe", "osworld_subset32", "trainer.nnodes=null"]) == 1
    printed = capsys.readouterr().out
    assert "[FAIL] figures: cannot be estimated\n       -> correct first what is refused below" in printed
    assert "refused at its start: trainer.nnodes must be a number of at least 1, got None" in printed


@pytest.mark.parametrize("config", ["{", "[]", '{"vision_config": {}, "text_config": null}'])
def test_a_policy_of_no_known_shape_has_none(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    assert model_shape(str(tmp_path)) is None


def test_a_policy_without_weights_is_not_estimated_as_if_it_had_none(model_path, tmp_path, capsys):
    shutil.copytree(model_path, tmp_path / "policy", ignore=shutil.ignore_patterns("*.safetensors"))
    main(["doctor", "--recipe", "embedded", f"actor_rollout_ref.model.path={tmp_path}/policy"])
    assert f"[FAIL] figures: the size of {tmp_path}/policy is unknown here" in capsys.readouterr().out


def test_an_import_that_takes_too_long_is_a_finding(monkeypatch):
    monkeypatch.setattr(packages, "PROBE_S", 0.01)
    findings = [*packages.check_registrations(), packages.check_osworld()]
    assert [(finding.subject, finding.ok) for finding in findings] == [("plugin", False), ("OSWorld's client", False)]
    assert all("took more than 0.01 s" in finding.detail and "again" in finding.remedy for finding in findings)


def test_each_patch_has_a_line_and_one_that_is_lost_fails(monkeypatch):
    """What a fresh interpreter says of them: `tests/plugin/test_patches.py` has the patches themselves."""
    lost = {f"{patch.module}: {', '.join(patch.names)}": "" for patch in all_patches().values()}
    lost |= {"verl.utils.tensordict_utils: maybe_fix_3d_position_ids": "This process runs it without ours."}
    lost |= {"vllm._custom_ops: _supports_onednn": None}
    said = f"PROBE{json.dumps([lost, {'agent loop gui_agent': True}])}\n"
    monkeypatch.setattr(packages, "_run_probe", lambda *_: SimpleNamespace(stdout=said, stderr=""))
    name, *patches = packages.check_registrations()
    assert name.ok and len(patches) == len(all_patches()) >= 7
    assert [finding.subject for finding in patches if not finding.ok] == ["patch of verl.utils.tensordict_utils"]
    details = {finding.subject: finding.detail for finding in patches}
    assert details["patch of vllm._custom_ops"] == "_supports_onednn: not needed here: without vllm, or by its version"
    assert details["patch of verl.utils.distributed"] == "initialize_global_process_group_ray: in place"


@pytest.mark.release
@pytest.mark.parametrize(("plugins", "is_there"), [("auto", True), ("none", False)])
def test_a_fresh_interpreter_has_all_patches_unless_our_plugin_is_left_out(plugins, is_there, monkeypatch):
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", plugins)
    monkeypatch.delenv("ARPO_VERL_RUN")
    patches = [found for found in packages.check_registrations() if found.subject.startswith("patch of verl")]
    assert len(patches) == 6 and all(finding.ok == is_there for finding in patches)


def test_without_tasks_the_machine_is_checked(capsys, monkeypatch):
    from arpo_verl.tools.cli import doctor
    from arpo_verl.tools.cli.checks import Finding

    monkeypatch.setattr(doctor, "check_registrations", lambda: [])  # they import veRL for many seconds
    monkeypatch.setattr(doctor, "check_osworld", lambda: Finding("OSWorld's client", False, "gone", "get it"))
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "[FAIL] OSWorld's client: gone\n       -> get it" in printed
    assert f"[ok  ] verl: {TESTED['verl']}" in printed and "disk" in printed and "KVM" in printed
