"""The curves, from files that grow."""

import json

import pytest

from arpo_verl.records.metrics import keep_earlier_metrics


def test_several_rows_of_a_step_are_one(written, run):
    written.metrics(0, val_core=0.25)
    written.metrics(1, rollout__success_mean=0.5)
    written.metrics(1, val_core=0.75)
    metrics = run.metrics()
    assert metrics.steps == (0, 1)
    assert metrics.column("val_core") == (0.25, 0.75)
    assert metrics.column("rollout/success_mean") == (None, 0.5)
    assert metrics.column("never/logged") == (None, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "text", None])
def test_what_is_no_number_is_none(written, run, value):
    written.metrics(1, loss=value, other=1)
    assert run.metrics().column("loss") == (None,)


@pytest.mark.parametrize("step", [10**400, -1, True, 1.5, "1", None])
def test_a_row_whose_step_is_no_count_is_passed_over(written, run, step):
    written.metrics(1, loss=3.0)
    with (written.path / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"step": step, "data": {"loss": 9.0}}) + "\n")
    assert run.metrics().steps == (1,) and run.metrics().column("loss") == (3.0,)


def test_rows_are_added_as_they_are_written(written, run):
    written.metrics(1, loss=3.0)
    first = run.metrics()
    assert run.metrics() is first
    written.metrics(2, loss=2.0)
    assert run.metrics().column("loss") == (3.0, 2.0)


def test_a_torn_last_line_waits_for_its_end(written, run):
    written.metrics(1, loss=3.0)
    with (written.path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 2, "data": {"lo')
    assert run.metrics().steps == (1,)
    with (written.path / "metrics.jsonl").open("a") as stream:
        stream.write('ss": 2.0}}\n')
    assert run.metrics().column("loss") == (3.0, 2.0)


def test_a_last_line_without_its_newline_counts_once(written, run):
    with (written.path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 1, "data": {"loss": 3.0}}')
    assert run.metrics().column("loss") == (3.0,)
    with (written.path / "metrics.jsonl").open("a") as stream:
        stream.write('\n{"step": 2, "data": {"loss": 2.0}}\n')
    assert run.metrics().column("loss") == (3.0, 2.0)


def test_a_file_written_anew_in_place_is_read_anew(written, run):
    for step in (1, 2, 3):
        written.metrics(step, loss=3.0)
    run.metrics()
    (written.path / "metrics.jsonl").write_text("")
    run.metrics()
    written.metrics(1, loss=1.0)
    assert run.metrics().column("loss") == (1.0,)


def test_a_resumed_run_goes_on_with_its_curves(written, run):
    for step, loss in ((1, 3.0), (2, 2.0), (3, 9.0)):
        written.metrics(step, loss=loss)
    assert run.metrics().steps == (1, 2, 3)
    keep_earlier_metrics(written.path, resumes=True)
    written.metrics(3, loss=1.0)  # done again after the checkpoint of step 2
    assert run.metrics().column("loss") == (3.0, 2.0, 1.0)


def test_a_run_started_anew_forgets_the_curves_of_the_old_one(written, run):
    for step in (1, 2, 3):
        written.metrics(step, loss=3.0)
    run.metrics()
    keep_earlier_metrics(written.path, resumes=False)
    written.metrics(1, loss=1.0)
    assert run.metrics().column("loss") == (1.0,)
