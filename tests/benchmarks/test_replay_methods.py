"""`benchmarks/replay_methods.py`: which tasks it takes, what it makes of its runs, and its correction of p-values."""

import json
from itertools import islice

import held_out
import learning
import learning_runs as runs
import pytest
import replay_methods
from learning_runs import BASE

CLASSES = {"with_room": ["held_out_seeds-005001-press"], "never_solved": ["held_out_words-005001-two"]}
SHARES = {BASE: 0.2, "grpo": 0.3, "arpo": 0.4, "arpo_seeded": 0.5, "rlep": 0.6, "exgrpo": 0.7, "spear": 0.8}


@pytest.fixture
def study(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(learning, "ship_policy", lambda work: work)
    return replay_methods.prepare(tmp_path, CLASSES, tmp_path / "seeds", smoke=True)


def test_figures_compare_every_arm_with_grpo_and_arpo_by_class_of_tasks(study, tmp_path, monkeypatch):
    def evaluate(study, work, method, seed, temperature):
        tasks = ["training-000000-press", *CLASSES["with_room"], *CLASSES["never_solved"]]
        return dict(zip(tasks, (1.0, SHARES[method] * (1 + seed / 10), 0.0), strict=True))

    def train(study, work, method, seed, title):
        return runs.Curve(method, seed, (runs.Point(100, 0.9, 8, 0.5, 0.25),) * 2, 3, 60.0)

    monkeypatch.setattr(held_out, "evaluate", evaluate)
    monkeypatch.setattr(held_out, "train", train)
    planned, path = replay_methods.planned(2), tmp_path / "figures.json"

    def figures_of(study, rows, count, design):
        return replay_methods.summarize(study, rows, count, design, CLASSES)

    while held_out.run_next(study, tmp_path, planned, path, figures_of, ()):
        figures = json.loads(path.read_text())
    assert figures["complete"]
    assert list(figures["arms"]) == list(replay_methods.ARMS)
    with_room = figures["summary"]["with_room"]
    assert with_room["spear_minus_grpo_points"]["mean"] == pytest.approx(57.5)
    assert with_room["exgrpo_minus_arpo_points"]["mean"] == pytest.approx(34.5)
    assert with_room["rlep_minus_warm_start_points"]["mean"] == pytest.approx(46)
    assert figures["summary"]["never_solved"]["rlep_minus_grpo_points"]["mean"] == 0
    assert figures["arms"]["rlep"]["step_s"] == pytest.approx(60)
    assert "| spear | +57.5" in replay_methods.table(figures)
    replay_methods.plot(figures, tmp_path / "figures.png")
    assert (tmp_path / "figures.png").read_bytes().startswith(b"\x89PNG")


def test_seeded_arms_get_the_store_and_each_its_method(study, tmp_path):
    seeded = {arm for arm in replay_methods.ARMS if f"replay.seed_from={tmp_path}/seeds" in study.overrides(arm, 1)}
    assert seeded == {"arpo_seeded", "rlep", "exgrpo", "spear"}
    assert "replay.method=exgrpo" in study.overrides("exgrpo", 1)
    assert "+baseline=grpo" in study.overrides("grpo", 1)
    assert not any("replay" in option for option in study.overrides(BASE, 1))


def test_p_values_are_corrected_by_holm():
    # By hand: 0.01 * 3, then 0.02 * 2, then 0.03 * 1 but no smaller than the one before.
    assert replay_methods.holm({"a": 0.03, "b": 0.01, "c": 0.02, "d": None}) == pytest.approx(
        {"a": 0.04, "b": 0.03, "c": 0.04}
    )


def test_classes_are_the_first_candidates_of_each_fate_and_too_few_are_refused():
    ids = [task.spec["id"] for task in islice(replay_methods.candidates(), 480)]
    assert len(set(ids)) == 480
    assert all(replay_methods.task_of(task_id).spec["id"] == task_id for task_id in ids[:3])
    fates = {
        f"{task_id}-{n}": fate
        for n, (fate, count) in enumerate(replay_methods.CLASSES.values())
        for task_id in ids[: count + 1]
    }
    classes = replay_methods.held_out_classes(fates)
    assert {name: len(of) for name, of in classes.items()} == {
        "with_room": 240,
        "never_solved": 60,
        "solved_before": 120,
    }
    with pytest.raises(SystemExit, match="--choose"):
        replay_methods.held_out_classes(dict(list(fates.items())[:100]))
