"""`benchmarks/learning.py`: its smoke form through the stock trainer, and how it reads runs."""

import json
import subprocess
import sys
from pathlib import Path

import learning
import learning_runs as runs
import pytest
from hydra import compose, initialize_config_dir
from trainer_run import ROOT

pytestmark = pytest.mark.study


@pytest.fixture
def curve():
    def make(method: str, seed: int, *successes: float, at: int = 100):
        points = [runs.Point(at * (i + 1), success, 32, 0.5, 0.25) for i, success in enumerate(successes)]
        return runs.Curve(method, seed, tuple(points), (runs.Validation(at, 0.5, 0.25),), 3, 60.0)

    return make


@pytest.fixture
def study():
    return runs.Study(
        Path(),
        Path(),
        Path(),
        environment_steps=400,
        group_size=4,
        groups_per_task=2,
        learning_rate=1e-4,
        validate_every=5,
        top_p=0.9,
    )


@pytest.mark.trainer
@pytest.mark.desktop
@pytest.mark.slow  # a policy and three trainers
def test_two_methods_train_for_the_same_environment_steps_and_are_not_trained_again(tmp_path):
    def study() -> dict:
        command = [sys.executable, learning.__file__, "--smoke", "--work", str(tmp_path / "work")]
        command += ["--json", str(tmp_path / "learning.json"), "--plot", str(tmp_path / "learning.png")]
        subprocess.run(command, check=True)
        return json.loads((tmp_path / "learning.json").read_text())

    figures = study()
    assert list(figures["methods"]) == ["grpo", "arpo"]
    for row in figures["methods"].values():
        assert row["environment_steps"] >= figures["settings"]["environment_steps"]
        assert row["validation_training_tasks"]["mean"] is not None
    assert {"mean", "low", "high", "by_seed"} == set(figures["summary"]["arpo_minus_grpo_points"])
    assert 0 < figures["summary"]["base"]["mean"] < 1
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")

    for tasks in ("training_tasks", "held_out"):
        for at in figures["summary"][tasks]["by_temperature"].values():
            assert {"base", "grpo", "arpo", "arpo_minus_grpo_points"} == set(at)
    work = tmp_path / "work"
    written = {path: path.stat().st_mtime_ns for name in ("done.json", "done") for path in work.rglob(name)}
    assert study() == figures
    assert len(written) == 2 + 3 * 2  # runs, and at two temperatures what came of them and of the warm start
    assert all(path.stat().st_mtime_ns == then for path, then in written.items())


def test_the_recipe_takes_the_options_of_every_method(study):
    recipes = str(ROOT / "recipes")
    configs = {}
    with initialize_config_dir(recipes, version_base=None):
        for method in runs.METHODS:
            overrides = ["hydra.searchpath=[pkg://verl.trainer.config]", *study.overrides(method, seed=2)]
            configs[method] = compose("embedded", overrides=overrides)
    assert {method for method, config in configs.items() if not config.replay.enable} == {"grpo", "dynamic_sampling"}
    assert configs["dynamic_sampling"].algorithm.filter_groups.enable
    assert {m for m, config in configs.items() if config.algorithm.filter_groups.enable} == {
        *("dynamic_sampling", "arpo_dynamic", "resume_dynamic")
    }
    assert {m for m, c in configs.items() if c.replay.mode == "resume"} == {"resume", "resume_credit", "resume_dynamic"}
    assert {m for m, c in configs.items() if c.algorithm.step_credit.kind != "none"} == {"arpo_credit", "resume_credit"}
    assert all(c.actor_rollout_ref.rollout.top_p == 0.9 for c in configs.values())
    assert all(c.actor_rollout_ref.rollout.val_kwargs.top_p == 0.9 for c in configs.values())
    assert configs["arpo_truncated"].replay.correction == "truncated"
    assert configs["arpo_most_likely"].replay.choice == "most_likely"


def test_success_is_that_of_the_whole_steps_of_the_last_third(curve):
    # The fifth step was under way when the budget was used up.
    assert curve("grpo", 1, 0.1, 0.2, 0.3, 0.5, 1.0).final_success(400) == pytest.approx(0.4)
    # Long steps: none ended in the last third, and the last that ended counts.
    assert curve("dynamic_sampling", 1, 0.1, 1.0, at=260).final_success(400) == 0.1
    # Not even the first ended within the budget: it is all there is.
    assert curve("dynamic_sampling", 1, 0.3, at=500).final_success(400) == 0.3


def test_methods_are_compared_by_seed(study, curve):
    curves = [curve("grpo", seed, 0.1, 0.1, *[0.1 * seed] * 2) for seed in (1, 2, 3)]
    curves += [curve("arpo", seed, 0.1, 0.1, *[0.1 * seed + 0.2] * 2) for seed in (1, 2, 3)]
    curves += [curve("arpo_most_likely", seed, 0.1, 0.1, *[0.2 * seed] * 2) for seed in (1, 2)]
    judged = {
        (method, seed): {1.0: runs.Validation(400, 0.5, share), 0.6: runs.Validation(400, share, 0.0)}
        for method, share in {"base": 0.0, "grpo": 0.25, "arpo": 0.5, "arpo_most_likely": 0.75}.items()
        for seed in (1, 2, 3, 4, 5)
    }
    summary = learning.summarize(study, judged, curves, best="arpo_most_likely")["summary"]
    assert summary["base"]["mean"] == pytest.approx(0.1)
    assert summary["arpo_minus_grpo_points"]["mean"] == pytest.approx(20)
    assert summary["arpo_minus_grpo_points"]["low"] == pytest.approx(20)
    assert summary["arpo_most_likely_minus_grpo_points"]["by_seed"] == pytest.approx({1: 10, 2: 20})
    assert summary["arpo_most_likely_minus_arpo_points"]["by_seed"] == pytest.approx({1: -10, 2: 0})
    assert "grpo_minus_arpo_points" not in summary
    assert summary["held_out"]["arpo_minus_grpo_points"]["mean"] == pytest.approx(25)
    assert summary["held_out"]["by_temperature"]["0.6"]["arpo_minus_grpo_points"]["mean"] == 0
    assert summary["training_tasks"]["by_temperature"]["0.6"]["arpo"]["mean"] == 0.5
    # The seeds that chose the best do not say how much better it is.
    assert summary["held_out"]["best_minus_arpo_points"]["by_seed"] == pytest.approx({4: 25, 5: 25})


def test_the_first_seeds_of_all_methods_are_run_before_any_further_one():
    order = learning._runs(["grpo", "arpo", "resume", "arpo_credit"], 8, best="resume")
    assert order[:4] == [("grpo", 1), ("arpo", 1), ("resume", 1), ("arpo_credit", 1)]
    assert order[12:] == [(method, seed) for seed in range(4, 9) for method in ("grpo", "arpo", "resume")]


def test_what_a_past_success_helped_is_a_step_on_a_desktop_and_no_skill(written):
    written.episode(1, "a", "u", 0, 1.0, num_steps=5, given_steps=3)
    written.episode(1, "b", "v", 0, 0.0, num_steps=2)
    (point,) = runs.read_curve(written.path, "resume", 1).points
    assert (point.environment_steps, point.success, point.episodes) == (7, 0.0, 2)


def test_interval_is_students():
    # Of three values: 4.303 standard errors.
    assert learning.interval([1.0, 2.0, 3.0]) == pytest.approx({"mean": 2.0, "low": -0.484, "high": 4.484}, abs=1e-3)
    assert learning.interval([1.0]) == {"mean": 1.0, "low": None, "high": None}


def test_success_by_environment_steps_is_smoothed_over_a_window(curve):
    run = curve("grpo", 1, 0.1, 0.2, 0.6)
    assert run.success_at(200, window=200, budget=400) == pytest.approx(0.3)
    assert run.success_at(0, window=50, budget=400) == 0.1
    assert run.success_at(300, window=200, budget=200) == 0.2
