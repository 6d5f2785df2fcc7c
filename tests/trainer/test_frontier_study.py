"""`benchmarks/frontier.py`: its smoke form through the stock trainer, and how it reads runs."""

import json
import subprocess
import sys
from pathlib import Path

import frontier
import learning_runs as runs
import pytest
from support.composed import compose_recipe

pytestmark = pytest.mark.study


@pytest.fixture
def study():
    return frontier.FrontierStudy(
        Path("policy"),
        Path("tasks"),
        environment_steps=300,
        group_size=4,
        groups_per_task=1,
        learning_rate=1e-4,
        save_every=1,
        groups=8,
        validation_rollouts=2,
        known=("a",),
        format_weight=0.0,
    )


def curve(method, seed, *informative):
    points = [runs.Point(100 * (i + 1), 0.5, 32, share, 0.25) for i, share in enumerate(informative)]
    return runs.Curve(method, seed, tuple(points), 3, 60.0)


@pytest.mark.trainer
@pytest.mark.desktop
@pytest.mark.release
def test_both_samplings_train_and_are_judged_and_are_not_trained_again(tmp_path):
    def measure() -> dict:
        command = [sys.executable, frontier.__file__, "--smoke", "--work", str(tmp_path / "work")]
        subprocess.run([*command, "--json", str(tmp_path / "frontier.json")], check=True)
        return json.loads((tmp_path / "frontier.json").read_text())

    figures = measure()
    assert list(figures["methods"]) == ["uniform", "frontier"]
    for row in figures["methods"].values():
        assert row["environment_steps"] >= figures["settings"]["environment_steps"] and 0 <= row["success"]["mean"] <= 1
    assert figures["summary"]["frontier_minus_uniform_points"]["by_seed"].keys() == {"1"}
    assert len(list((tmp_path / "work").glob("frontier-1/trajectories/frontier.jsonl"))) == 1
    assert measure() == figures


def test_the_recipe_takes_the_options_of_both(study):
    for method in frontier.SAMPLINGS:
        config = compose_recipe("embedded", *study.overrides(method, seed=2))
        assert config.data.tasks.sampling == method and config.data.tasks.frontier.group_size == 4
        assert (config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size) == (8, 2)


def test_only_steps_that_ended_within_the_budget_count_and_runs_are_paired_by_seed(study):
    curves = [curve("uniform", 1, 0.25, 0.25, 0.25, 1.0), curve("frontier", 1, 0.25, 0.5, 0.75, 0.0)]
    judged = [{"a": 0.5, "b": 0.0}, {"a": 0.75, "b": 0.25}]
    summary = frontier.summarize(study, {"a": 0.5, "b": 0.0}, curves, judged)["summary"]
    assert summary["informative_share_ratio"] == pytest.approx(2)
    assert summary["frontier_minus_uniform_points"]["by_seed"] == {1: pytest.approx(25)}
    assert (summary["base"], summary["base_known"], summary["base_tasks_never_solved"]) == (0.25, 0.5, 1)
