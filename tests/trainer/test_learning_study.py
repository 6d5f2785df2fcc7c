"""`benchmarks/learning.py`: its smoke form through the stock trainer, and how it reads runs."""

import dataclasses
import json
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import learning
import learning_runs as runs
import pytest
import yaml
from support.composed import compose_recipe
from trainer_run import ROOT

from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.families import generate

pytestmark = pytest.mark.study


@pytest.fixture
def curve():
    def make(method: str, seed: int, *successes: float, at: int = 100):
        points = [runs.Point(at * (i + 1), success, 32, 0.5, 0.25) for i, success in enumerate(successes)]
        return runs.Curve(method, seed, tuple(points), 3, 60.0)

    return make


@pytest.fixture
def study():
    return runs.Study(
        Path(),
        Path(),
        environment_steps=400,
        group_size=4,
        groups_per_task=2,
        learning_rate=1e-4,
        save_every=5,
        held_out=Path(),
        top_p=0.9,
    )


def evaluated(at_1: tuple[float, float], at_06: tuple[float, float]):
    """By temperature, success of training tasks and of each held-out split."""
    splits = ("training", *runs.HELD_OUT_SPLITS)
    return {
        temperature: {f"{split}-000000-press": held_out if split != "training" else training for split in splits}
        for temperature, (training, held_out) in {"1.0": at_1, "0.6": at_06}.items()
    }


@pytest.mark.trainer
@pytest.mark.desktop
@pytest.mark.release  # a policy and three trainers
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
        assert 0 <= row["lowest"] <= 1
    assert {"mean", "low", "high", "by_seed"} == set(figures["summary"]["arpo_minus_grpo_points"])
    # Eight rollouts of tasks that are seldom solved: none may be.
    first = [run["curve"]["points"][0]["success"] for run in figures["runs"] if run["curve"]["method"] != "base"]
    assert figures["summary"]["base"]["mean"] == pytest.approx(statistics.fmean(first))
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")

    assert [(run["curve"]["method"], run["curve"]["seed"]) for run in figures["runs"]] == [
        *(("base", 1), ("grpo", 1), ("arpo", 1))
    ]
    for tasks in ("training_tasks", "held_out"):
        for at in figures["summary"][tasks]["by_temperature"].values():
            assert {"base", "grpo", "arpo", "arpo_minus_grpo_points"} == set(at)
    work = tmp_path / "work"
    written = {path: path.stat().st_mtime_ns for name in ("done.json", "done") for path in work.rglob(name)}
    assert study() == figures
    assert len(written) == 2 + 3 * 2  # runs, and at two temperatures what came of them and of the warm start
    assert all(path.stat().st_mtime_ns == then for path, then in written.items())


def test_the_recipe_takes_the_options_of_every_method(study):
    configs = {m: compose_recipe(runs.RECIPE.stem, *study.overrides(m, seed=2)) for m in runs.METHODS}
    assert {method for method, config in configs.items() if not config.replay.enable} == {"grpo", "dynamic_sampling"}
    assert configs["dynamic_sampling"].algorithm.filter_groups.enable
    assert {m for m, config in configs.items() if config.algorithm.filter_groups.enable} == {
        *("dynamic_sampling", "arpo_dynamic")
    }
    assert all(c.actor_rollout_ref.rollout.top_p == 0.9 for c in configs.values())
    assert all(c.actor_rollout_ref.rollout.val_kwargs.top_p == 0.9 for c in configs.values())


def test_success_is_that_of_the_whole_steps_of_the_last_third(curve):
    # The fifth step was under way when the budget was used up.
    assert curve("grpo", 1, 0.1, 0.2, 0.3, 0.5, 1.0).final_success(400) == pytest.approx(0.4)
    assert curve("grpo", 1, 0.1, 0.2, 0.3, 0.5, 1.0).final_success(500) == pytest.approx(0.5), "used up to the step"
    # Long steps: none ended in the last third, and the last that ended counts.
    assert curve("dynamic_sampling", 1, 0.1, 1.0, at=260).final_success(400) == 0.1
    # Not even the first ended within the budget: it is all there is.
    assert curve("dynamic_sampling", 1, 0.3, at=500).final_success(400) == 0.3


def test_methods_are_compared_by_seed(study, curve):
    curves = [curve("grpo", seed, 0.1, 0.1, *[0.1 * seed] * 2) for seed in (1, 2, 3)]
    curves += [curve("arpo", seed, 0.1, 0.1, *[0.1 * seed + 0.2] * 2) for seed in (1, 2, 3)]
    curves += [curve("arpo_most_likely", seed, 0.1, 0.1, *[0.2 * seed] * 2) for seed in (1, 2, 3)]
    shares = {"grpo": 0.25, "arpo": 0.5, "arpo_most_likely": 0.75}
    results = [
        runs.Result("p", c, evaluated((0.5, share), (share, 0.0)))
        for c, share in ((c, shares[c.method]) for c in curves)
    ]
    nothing = evaluated((0.0, 0.0), (0.0, 0.0))
    results.append(runs.Result("p", runs.Curve("base", 1, (), 0, 0.0), nothing))
    figures = learning.summarize(study, results, best="arpo_most_likely")
    summary = figures["summary"]
    assert figures["methods"]["arpo"]["lowest"] == pytest.approx(0.1)
    assert summary["base"]["mean"] == pytest.approx(0.1)
    assert summary["arpo_minus_grpo_points"]["mean"] == pytest.approx(20)
    assert summary["arpo_minus_grpo_points"]["low"] == pytest.approx(20)
    assert summary["arpo_most_likely_minus_grpo_points"]["by_seed"] == pytest.approx({1: 10, 2: 20, 3: 30})
    assert summary["arpo_most_likely_minus_arpo_points"]["by_seed"] == pytest.approx({1: -10, 2: 0, 3: 10})
    assert "grpo_minus_arpo_points" not in summary
    assert summary["held_out"]["arpo_minus_grpo_points"]["mean"] == pytest.approx(25)
    assert summary["held_out"]["by_temperature"]["0.6"]["arpo_minus_grpo_points"]["mean"] == 0
    assert summary["training_tasks"]["by_temperature"]["0.6"]["arpo"]["mean"] == 0.5
    # The seeds that chose the best do not say how much better it is.
    assert summary["held_out"]["best_minus_arpo_points"]["by_seed"] == pytest.approx({3: 25})
    assert summary["environment_steps_ratio"]["method"] == "arpo_most_likely"
    assert summary["arpo_environment_steps_ratio"] == {"method": "arpo", **learning.steps_ratio(curves, "arpo", 400)}


def test_runs_come_in_the_order_that_was_told_beforehand():
    every = ["grpo", "arpo", "resume", "arpo_credit"]
    main = [(method, seed) for seed in range(1, 6) for method in ("grpo", "arpo")]
    others = [(method, seed) for seed in (1, 2) for method in ("resume", "arpo_credit")]
    assert learning._runs(every, 7, best=None) == main + others
    rest = [run for seed in range(3, 8) for run in (("grpo", seed), ("arpo", seed), ("resume", seed))]
    assert learning._runs(every, 7, best="resume") == main + others + [run for run in rest if run not in main]
    assert learning._runs(every, 1, best=None) == [(method, 1) for method in every]


def test_held_out_tasks_are_of_the_training_families_or_of_families_of_their_own():
    names = {split: [task.family for task in learning._held_out(split, 4)] for split in runs.HELD_OUT_SPLITS}
    assert set(names.pop("held_out_families")) == {"which", "three"}
    assert all(sorted(of_split) == ["close", "close", "follow", "follow"] for of_split in names.values())
    assert {generate("training", number).family for number in learning.TRAINING} == set(learning.FAMILIES)


def test_the_demo_trains_on_the_studys_tasks():
    files = yaml.safe_load((ROOT / "recipes" / "demo.yaml").read_text())["data"]["train_files"]
    expected = [generate("training", number).spec["id"] for number in learning.TRAINING]
    assert [task.task_id for task in load_tasks(files)] == expected


def test_a_study_goes_on_from_its_figures(study, curve, tmp_path):
    path = tmp_path / "learning.json"
    assert learning.read_results(path, study) == {}
    results = [
        runs.Result("p", c, evaluated((0.5, 0.25), (0.5, 0.0)))
        for c in (curve("grpo", 1, 0.1, 0.2), curve("arpo", 1, 0.1, 0.3))
    ]
    path.write_text(json.dumps(learning.summarize(study, results)))
    assert learning.read_results(path, study) == {("grpo", 1): results[0], ("arpo", 1): results[1]}
    with pytest.raises(SystemExit, match="settings"):
        learning.read_results(path, dataclasses.replace(study, learning_rate=1.0))


def test_a_run_that_ended_at_a_smaller_budget_is_gone_on_with(study, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(runs, "_train_until", lambda *arguments, last: trained.append(last))
    monkeypatch.setattr(runs, "read_curve", lambda *run: run)
    (tmp_path / "arpo-1").mkdir()
    done = tmp_path / "arpo-1" / runs.DONE
    done.write_text(json.dumps({"environment_steps": study.environment_steps}))
    runs.train(study, tmp_path, "arpo", 1, "")
    assert trained == []
    done.write_text(json.dumps({"environment_steps": study.environment_steps - 1}))
    runs.train(study, tmp_path, "arpo", 1, "")
    assert trained == [False] * (runs.ATTEMPTS - 1) + [True]


def test_an_evaluation_that_lost_sessions_is_made_again(written, monkeypatch):
    played = []
    monkeypatch.setattr(runs, "TrainerRun", lambda *run, **recipe: SimpleNamespace(wait=lambda: play(len(played))))
    monkeypatch.setattr(runs.shutil, "rmtree", lambda *folder, ignore_errors: None)

    def play(time):
        played.append(time)
        for task_id, sessions in (("a", (0, 1)), ("b", (0, 1) if time else (0,))):
            for session in sessions:
                written.episode(1, task_id, task_id, session, float(session == 0))

    with pytest.raises(RuntimeError, match="equally often, got .*'a': 2, 'b': 1.*: evaluate it again"):
        runs.play_all(written.path, [], None)
    for _ in range(2):
        assert runs.play_all(written.path, [], None) == {"a": 0.5, "b": 0.5}
    assert played == [0, 1]


def test_interval_is_students():
    # Of three values: 4.303 standard errors.
    assert learning.interval([1.0, 2.0, 3.0]) == pytest.approx({"mean": 2.0, "low": -0.484, "high": 4.484}, abs=1e-3)
    assert learning.interval([1.0]) == {"mean": 1.0, "low": None, "high": None}


def test_success_by_environment_steps_is_smoothed_over_a_window(curve):
    run = curve("grpo", 1, 0.1, 0.2, 0.6, 1.0)  # it was ended in the last
    assert run.success_at(200, window=200, budget=400) == pytest.approx(0.3)
    assert run.success_at(0, window=50, budget=400) == 0.1
    assert run.success_at(300, window=200, budget=200) == 0.2


def test_steps_to_grpos_success_are_told_by_seed(curve):
    cut = 1.0  # in the step that a run is ended in
    curves = [curve("grpo", 1, 0.1, 0.2, 0.3, 0.4, cut), curve("arpo", 1, 0.1, 0.5, 0.5, 0.5, cut)]
    curves += [curve("grpo", 3, 0.1, 0.2, 0.3, 0.4, cut), curve("arpo", 3, 0.1, 0.1, 0.1, 0.1, cut)]
    curves += [curve("arpo", 2, 0.9)]
    assert learning.steps_ratio(curves, "arpo", 400)["by_seed"] == {1: pytest.approx(200 / 400), 3: pytest.approx(1.0)}
    none = {"mean": None, "low": None, "high": None, "by_seed": {}}
    assert learning.steps_ratio(curves, "arpo_credit", 400) == none
    # Nothing was to be reached where GRPO did not rise, and the first seeds choose which method is told of.
    assert learning.steps_ratio([curve("grpo", 1, 0.4, 0.1), curve("arpo", 1, 0.1, 0.5)], "arpo", 200) == none
    curves += [curve("arpo_credit", seed, 0.5, 0.5, 0.5, 0.5) for seed in (1, 3)]
    assert learning.steps_ratio(curves, "arpo_credit", 400)["by_seed"].keys() == {3}
