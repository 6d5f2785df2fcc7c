"""`arpo-verl recipes`: where they are, what there is, and one to change."""

from pathlib import Path

import pytest
from hydra import compose
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra

from arpo_verl.cli.main import main
from arpo_verl.cli.recipes import describe_recipes

pytest.importorskip("verl")

RECIPES = Path(__file__).parents[2] / "recipes"


def compose_in(folder, name, *overrides):
    """What `--config-dir folder --config-name name` does to the stock trainer's own search path."""
    search_path = create_config_search_path("pkg://verl.trainer.config")
    search_path.prepend("command-line", f"file://{folder}", anchor="schema")
    GlobalHydra.instance().clear()
    Hydra.create_main_hydra2("test", search_path)
    try:
        return compose(name, overrides=["data.train_files=t.json", "data.val_files=t.json", *overrides])
    finally:
        GlobalHydra.instance().clear()


def test_the_folder_is_printed_alone_for_config_dir(capsys):
    assert main(["recipes"]) == 0
    assert capsys.readouterr().out == f"{RECIPES}\n"


def test_every_recipe_is_listed_with_its_first_sentence(capsys):
    assert main(["recipes", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = {str(path.relative_to(RECIPES).with_suffix("")) for path in RECIPES.rglob("*.yaml")}
    assert {line.split()[0] for line in lines} == names
    assert all(line.endswith(".") and len(line.split()) > 4 for line in lines)
    assert "osworld_subset32           ARPO on one node: 32 OSWorld tasks, 8 GPUs, 16 Docker desktops." in lines
    assert "baseline/grpo              GRPO without replay: add `+baseline=grpo` to any recipe." in lines


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("demo", "osworld_full") else pytest.mark.release)
        for name in sorted(describe_recipes())
        if "/" not in name and name != "arpo"
    ],
)
def test_a_copied_recipe_composes_to_the_same_by_itself(name, tmp_path, capsys):
    assert main(["recipes", "copy", name, str(tmp_path)]) == 0
    assert f"--config-dir {tmp_path} --config-name {name}" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.yaml"]
    choices = ("+baseline=grpo", "+policy=qwen3_vl")
    assert compose_in(tmp_path, name, *choices) == compose_in(RECIPES, name, *choices)


def test_what_a_copy_changes_counts(tmp_path):
    for name in ("embedded", "arpo", "baseline/grpo"):
        assert main(["recipes", "copy", name, str(tmp_path)]) == 0
    for name, old, new in (
        ("embedded", "train_batch_size: 8", "train_batch_size: 4"),
        ("arpo", "capacity_per_task: 8", "capacity_per_task: 5"),
        ("baseline/grpo", "_grpo", "_plain"),
    ):
        path = tmp_path / f"{name}.yaml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    recipe = compose_in(tmp_path, "embedded", "+baseline=grpo")
    assert recipe.data.train_batch_size == 4
    assert recipe.replay.capacity_per_task == 5
    assert recipe.variant.baseline == "_plain"


def test_a_copy_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "embedded.yaml").write_text("mine")
    assert main(["recipes", "copy", "embedded", str(tmp_path)]) == 2
    assert "exists, and we do not overwrite it" in capsys.readouterr().err
    assert (tmp_path / "embedded.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    "name, hint", [("embeded", "; did you mean embedded? Known: arpo"), ("../arpo", "Known: arpo")]
)
def test_an_unknown_recipe_is_told_with_the_known_ones(name, hint, tmp_path, capsys):
    assert main(["recipes", "copy", name, str(tmp_path)]) == 2
    assert hint in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("order", [("osworld_full", "osworld_subset32"), ("osworld_subset32", "osworld_full")])
def test_two_copies_of_which_hydra_would_refuse_one_are_refused(order, tmp_path, capsys):
    first, second = order
    assert main(["recipes", "copy", first, str(tmp_path)]) == 0
    assert main(["recipes", "copy", second, str(tmp_path)]) == 2
    assert "osworld_subset32 builds on osworld_full" in capsys.readouterr().err
    assert [path.stem for path in tmp_path.iterdir()] == [first]
