"""The curves, from files that grow."""

import json

import pytest

from arpo_verl.records.metrics_files import keep_earlier_metrics


def append(written, text):
    with (written.path / "metrics.jsonl").open("a") as stream:
        stream.write(text)


def test_rows_are_added_as_they_are_written_and_several_of_a_step_are_one(written, run):
    written.metrics(0, val_core=0.25)
    written.metrics(1, rollout__success_mean=0.5)
    first = run.metrics()
    assert run.metrics() is first
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
    append(written, json.dumps({"step": step, "data": {"loss": 9.0}}) + "\n")
    assert run.metrics().steps == (1,) and run.metrics().column("loss") == (3.0,)


def test_a_torn_last_line_waits_for_its_end_and_one_without_its_newline_counts_once(written, run):
    written.metrics(1, loss=3.0)
    append(written, '{"step": 2, "data": {"lo')
    assert run.metrics().steps == (1,)
    append(written, 'ss": 2.0}}')
    assert run.metrics().column("loss") == (3.0, 2.0)
    append(written, '\n{"step": 3, "data": {"loss": 1.0}}\n')
    assert run.metrics().column("loss") == (3.0, 2.0, 1.0)


def test_a_resumed_run_goes_on_with_its_curves(written, run):
    for step, loss in ((1, 3.0), (2, 2.0), (3, 9.0)):
        written.metrics(step, loss=loss)
    assert run.metrics().steps == (1, 2, 3)
    keep_earlier_metrics(written.path, resumes=True)
    written.metrics(3, loss=1.0)  # done again after the checkpoint of step 2
    assert run.metrics().column("loss") == (3.0, 2.0, 1.0)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_run_started_anew_forgets_the_curves_of_the_old_one(written, run, in_place):
    for step in (1, 2, 3):
        written.metrics(step, loss=3.0)
    run.metrics()
    if in_place:
        (written.path / "metrics.jsonl").write_text("")
        run.metrics()
    else:
        keep_earlier_metrics(written.path, resumes=False)
    written.metrics(1, loss=1.0)
    assert run.metrics().column("loss") == (1.0,)
