"""A run's summary from the metrics file that veRL's `file` logger writes."""

import json

import pytest

from arpo_verl.errors import ConfigError
from arpo_verl.records.ended_starts import note_fault
from arpo_verl.records.metrics_files import keep_earlier_metrics
from arpo_verl.records.run_summary import format_summary, summarize_run


def write_metrics(folder, rows):
    lines = [json.dumps({"step": step, "data": data}) for step, data in rows]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def training(success, injected=0, diff=0.001, seconds=10.0):
    return {
        "rollout/success_mean": success,
        "replay/injected": injected,
        "training/rollout_probs_diff_max": diff,
        "timing_s/step": seconds,
    }


def test_summary_compares_the_two_ends_of_a_run(tmp_path):
    successes = [0.1, 0.2, 0.3, 0.2, 0.2, 0.5, 0.8, 0.8, 0.6, 0.8, 0.5]
    rows = [(step, training(success, injected=2)) for step, success in enumerate(successes, start=1)]
    rows.insert(0, (0, {"val-aux/arpo_verl/success/mean@2": 0.25}))
    rows.append((11, {"val-aux/arpo_verl/success/mean@2": 0.75}))
    write_metrics(tmp_path, rows)
    summary = summarize_run(tmp_path)
    assert (summary.validation_before, summary.validation_after) == (0.25, 0.75)
    assert summary.first_steps_success == pytest.approx(0.2)
    assert summary.last_steps_success == pytest.approx(0.7)
    assert (summary.steps, summary.replays_injected) == (11, 22)
    assert "first 5 steps       20.0%\nsuccess, last 5 steps        70.0%" in format_summary(summary)
    write_metrics(tmp_path, rows[:3])  # two steps have no two ends
    assert "success of these steps       15.0%" in format_summary(summarize_run(tmp_path))
    write_metrics(tmp_path, [(8, training(0.1) | {"val/success_mean": 0.5})])  # EasyR1's, and none before the training
    assert "success, first validation    50.0%" in format_summary(summarize_run(tmp_path))


@pytest.mark.parametrize(
    ("without", "most"), [({}, 0.002), ({"replay/without/training/rollout_probs_diff_max": 0.003}, 0.003)]
)
def test_of_the_rollout_engine_a_step_with_replays_says_what_its_other_rows_do(tmp_path, without, most):
    write_metrics(tmp_path, [(1, training(0.5, diff=0.002)), (2, training(0.5, injected=1, diff=0.9) | without)])
    assert summarize_run(tmp_path).probs_diff_max == most


def test_what_was_not_measured_is_said_to_be_so(tmp_path):
    write_metrics(tmp_path, [(1, {"rollout/success_mean": 0.5})])
    text = format_summary(summarize_run(tmp_path))
    assert "not measured" in text and "none saved" in text and "none recorded" in text and "fault" not in text
    note_fault(tmp_path, "an engine died")
    note_fault(tmp_path, "the queue died")
    assert "starts that a fault ended    2; the last: the queue died" in format_summary(summarize_run(tmp_path))


@pytest.mark.parametrize(
    ("recipe", "added", "words"),
    [
        (None, 0, "4\n"),
        ({}, 0, "4 by arpo\n"),  # of before there were methods
        ({"replay.method": "spear", "replay.enable": True}, 1, "4 by spear, 2 of them beside groups\n"),
        ({"replay.enable": False}, 0, "4\n"),
        ({"replay.method": "\x1b[2Jspear"}, 0, "4 by ?[2Jspear\n"),  # a stranger's file
    ],
)
def test_the_summary_names_the_method_of_the_replays(tmp_path, recipe, added, words):
    write_metrics(tmp_path, [(step, training(0.5, injected=2) | {"replay/added": added}) for step in (1, 2)])
    if recipe is not None:
        (tmp_path / "starts.jsonl").write_text(json.dumps({"recipe": recipe, "versions": {}}) + "\n")
    assert f"replays injected             {words}" in format_summary(summarize_run(tmp_path))


def test_a_run_counts_all_its_starts_but_none_of_a_run_begun_anew(tmp_path):
    with pytest.raises(ConfigError, match="metrics.jsonl"):
        summarize_run(tmp_path)
    write_metrics(tmp_path, [(1, training(0.9)), (2, training(0.9))])
    keep_earlier_metrics(tmp_path, resumes=False)
    write_metrics(tmp_path, [(1, training(0.1)), (2, training(0.2)), (3, training(0.3))])
    keep_earlier_metrics(tmp_path, resumes=True)
    assert summarize_run(tmp_path).steps == 3  # a start that resumes has no metrics of its own yet
    write_metrics(tmp_path, [(3, training(0.5)), (4, training(0.6))])
    summary = summarize_run(tmp_path)
    assert summary.steps == 4
    assert summary.first_steps_success == pytest.approx((0.1 + 0.2 + 0.5 + 0.6) / 4)
    assert len((tmp_path / "metrics.old000.jsonl").read_text().splitlines()) == 2
