"""`benchmarks/held_out.py`: the order of its runs, what it makes of them, and how two of it share the work."""

import json

import held_out
import learning
import learning_runs as runs
import pytest
from filelock import FileLock

DESIGN = (held_out.summarize, held_out.DESIGN)
SPLITS = ("training", *held_out.SPLITS, held_out.UNSEEN)


@pytest.fixture
def study(tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "model.safetensors").write_bytes(b"weights")
    return held_out.HeldOutStudy(
        policy=tmp_path / "policy",
        tasks=tmp_path / "tasks",
        held_out=tmp_path / "tasks",
        environment_steps=400,
        group_size=2,
        groups_per_task=1,
        groups_a_step=4,
        learning_rate=1e-4,
        save_every=1,
        top_p=0.9,
    )


@pytest.fixture
def trains(monkeypatch):
    """Training and evaluation whose success is known: 0.2 at the warm start, 0.3 for GRPO, 0.5 for ARPO."""
    shares = {runs.BASE: 0.2, "grpo": 0.3, "arpo": 0.5}
    point = runs.Point(100, 0.5, 8, 0.5, 0.25)

    def evaluate(study, work, method, seed, temperature):
        found = {f"{split}-001000-press": shares[method] + seed / 100 for split in SPLITS}
        return found | {f"{split}-001001-two": 0.0 for split in SPLITS}

    monkeypatch.setattr(held_out, "evaluate", evaluate)
    monkeypatch.setattr(
        held_out, "train", lambda study, work, method, seed, title: runs.Curve(method, seed, (point, point), 3, 60.0)
    )
    monkeypatch.setattr(held_out, "_design_commit", lambda path, design: "abc")


def test_each_seed_has_the_warm_start_and_both_methods_and_the_figures_say_when_all_are_there(study, trains, tmp_path):
    planned, path = held_out.planned(2), tmp_path / "figures.json"
    assert planned == [(method, seed) for seed in (1, 2) for method in ("base", "grpo", "arpo")]
    complete = []
    while held_out.run_next(study, tmp_path, planned, path, *DESIGN):
        figures = json.loads(path.read_text())
        complete.append(figures["complete"])
    assert complete == [False] * 5 + [True]
    assert [(row["curve"]["method"], row["curve"]["seed"]) for row in figures["runs"]] == planned
    assert figures["design_commit"] == "abc"
    held = figures["summary"]["held_out"]
    assert held["warm_start"]["mean"] == pytest.approx((0.21 + 0.22) / 4)
    assert held["arpo_minus_warm_start_points"]["mean"] == pytest.approx(15)
    assert held["arpo_minus_grpo_points"]["by_seed"] == pytest.approx({"1": 10, "2": 10})
    assert held["by_family"]["two"]["arpo_minus_grpo_points"]["mean"] == 0
    assert held["by_split"]["held_out_words"]["grpo_minus_warm_start_points"]["mean"] == pytest.approx(5)
    assert figures["summary"]["training"]["arpo_minus_grpo_points"]["low"] == pytest.approx(10)
    # Three of six tasks differ, by 30 points: of six drawn anew, 1 to 5 do in 97% of all draws.
    drawn = held["arpo_minus_warm_start_points"]
    assert (drawn["resampled_low"], drawn["resampled_high"]) == pytest.approx((5, 25))
    assert "+15.0" in held_out.table(figures)
    held_out.plot(figures, tmp_path / "figures.png")
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_another_process_is_at_is_left_to_it(study, trains, tmp_path):
    planned, path = held_out.planned(1), tmp_path / "figures.json"
    with FileLock(tmp_path / "base-1.running"):
        assert held_out.run_next(study, tmp_path, planned, path, *DESIGN)
    (row,) = json.loads(path.read_text())["runs"]
    assert row["curve"]["method"] == "grpo"


def test_figures_of_another_study_are_refused(study, trains, tmp_path):
    path = tmp_path / "figures.json"
    path.write_text(json.dumps({"settings": learning.settings(study) | {"environment_steps": 1}, "runs": []}))
    with pytest.raises(SystemExit, match="is of a study with the settings"):
        held_out.run_next(study, tmp_path, held_out.planned(1), path, *DESIGN)


def test_held_out_tasks_are_of_the_families_in_equal_parts_and_none_is_a_training_task():
    tasks = list(held_out.held_out_tasks("held_out_words", held_out.FAMILIES, 16))
    assert {family: sum(t.family == family for t in tasks) for family in held_out.FAMILIES} == dict.fromkeys(
        held_out.FAMILIES, 4
    )
    assert all(number < held_out.FIRST_HELD_OUT for number in held_out.TRAINING)
