"""`benchmarks/resume.py`, on the long tasks: its smoke form through the stock trainer, and what its runs are told."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import resume
from learning_runs import Curve, Point, Result
from support.composed import compose_recipe

pytestmark = pytest.mark.study


@pytest.fixture
def study():
    return resume.LongStudy(
        *(Path("policy"), Path("tasks")),
        environment_steps=400,
        group_size=2,
        groups_per_task=1,
        learning_rate=1e-4,
        save_every=1,
        held_out=Path("held_out"),
        seeds=Path("seeds"),
    )


@pytest.mark.trainer
@pytest.mark.desktop
@pytest.mark.release  # demonstrations, and a trainer and two judgements for each method
def test_three_methods_train_from_one_demonstration_a_task(tmp_path):
    command = [sys.executable, resume.__file__, "--smoke", "--work", str(tmp_path / "work")]
    subprocess.run([*command, "--json", str(tmp_path / "resume.json")], check=True)
    figures = json.loads((tmp_path / "resume.json").read_text())
    replays = {run["curve"]["method"]: run["curve"]["replays"] for run in figures["runs"]}
    assert list(replays) == ["base", *resume.METHODS] and replays["grpo"] == 0 < replays["arpo"]
    assert {"resume_minus_arpo_points", "resume_minus_grpo_points"} <= figures["summary"]["held_out"].keys()


def test_methods_differ_in_what_they_do_with_the_demonstrations(study):
    configs = {m: compose_recipe(study.recipe.stem, *study.overrides(m, seed=2)) for m in resume.METHODS}
    assert {method: config.replay.enable for method, config in configs.items()} == {
        **{"grpo": False, "arpo": True, "resume": True}
    }
    assert [configs[method].replay.mode for method in ("arpo", "resume")] == ["inject", "resume"]
    assert [configs[method].replay.get("seed_from") for method in resume.METHODS] == [None, "seeds", "seeds"]
    assert all(config.gui_agent.max_steps == 8 for config in configs.values())


def test_training_and_held_out_tasks_are_told_apart_by_their_split(study):
    judged = {str(at): {"long-000000-five": 0.5, "held_out_long-000000-five": 0.25} for at in (1.0, 0.6)}
    curve = Curve("resume", 1, (Point(100, 0.5, 32, 0.5, 0.25),), 0, 60.0)
    summary = resume.summarize(study, [Result("p", curve, judged)])["summary"]
    assert summary["training_tasks"]["resume"]["mean"] == 0.5 and summary["held_out"]["resume"]["mean"] == 0.25
