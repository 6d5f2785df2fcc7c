"""`arpo-verl recipes`: where they are, what there is, and one to change."""

from pathlib import Path

import pytest
from support.composed import compose_in

from arpo_verl.tools.cli.main import main
from arpo_verl.tools.cli.recipes import describe_recipes

pytest.importorskip("verl")

RECIPES = Path(__file__).parents[3] / "recipes"
TASKS = ("data.train_files=t.json", "data.val_files=t.json")


def test_the_folder_is_printed_alone_for_config_dir(capsys):
    assert main(["recipes"]) == 0
    assert capsys.readouterr().out == f"{RECIPES}\n"


def test_every_recipe_is_listed_with_its_first_sentence(capsys):
    assert main(["recipes", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = {str(path.relative_to(RECIPES).with_suffix("")) for path in RECIPES.rglob("*.yaml")}
    assert {line.split()[0] for line in lines} == names
    assert all(line.endswith(".") and len(line.split()) > 4 for line in lines)
    assert [name for line in lines if "/" not in (name := line.split()[0])][-1] == "arpo", "which is only a part"
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
    tasks = " data.train_files=TASKS.json data.val_files=TASKS.json" if name.startswith("osworld") else ""
    assert capsys.readouterr().out.endswith(f"arpo-verl train {tmp_path / name}.yaml{tasks}\n")
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.yaml"]
    choices = ("+baseline=grpo", "+policy=qwen3_vl")
    copied, own = compose_in(tmp_path, name, *TASKS, *choices), compose_in(RECIPES, name, *TASKS, *choices)
    assert copied.run_dir != own.run_dir, "a changed copy would resume the run of what it was copied from"
    own.trainer.experiment_name = copied.trainer.experiment_name
    assert copied == own


def test_what_a_copy_changes_counts(tmp_path):
    for name in ("embedded", "arpo", "baseline/grpo", "plugin/arpo"):
        assert main(["recipes", "copy", name, str(tmp_path)]) == 0
    for name, old, new in (
        ("embedded", "train_batch_size: 8", "train_batch_size: 4"),
        ("arpo", "capacity_per_task: 8", "capacity_per_task: 5"),
        ("baseline/grpo", "_grpo", "_plain"),
    ):
        path = tmp_path / f"{name}.yaml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    recipe = compose_in(tmp_path, "embedded", *TASKS, "+baseline=grpo")
    assert recipe.data.train_batch_size == 4
    assert recipe.replay.capacity_per_task == 5
    assert recipe.variant.baseline == "_plain"


@pytest.mark.parametrize("order", [("osworld_full", "osworld_subset32"), ("osworld_subset32", "osworld_full")])
def test_two_copies_of_which_hydra_would_refuse_one_are_refused(order, tmp_path, capsys):
    first, second = order
    assert main(["recipes", "copy", first, str(tmp_path)]) == 0
    assert main(["recipes", "copy", second, str(tmp_path)]) == 2
    assert "osworld_subset32 builds on osworld_full" in capsys.readouterr().err
    assert [path.stem for path in tmp_path.iterdir()] == [first]
