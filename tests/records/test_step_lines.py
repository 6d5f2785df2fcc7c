"""A line a training step, from the metrics file as it grows."""

import json

import pytest

from arpo_verl.records.step_lines import StepLines


def append(folder, step, data):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "data": data}) + "\n")


def training(step, seconds=60.0, **more):
    return {"training/global_step": step, "timing_s/step": seconds, **more}


def test_each_step_is_told_once_with_the_time_that_is_left(tmp_path):
    lines = StepLines(tmp_path, total=120)
    assert lines.read_new() == [] and lines.step is None, "nothing was logged yet"
    append(tmp_path, 1, training(1, 60.0))
    assert lines.read_new() == ["step   1 of 120  60 s  1 h 59 min left"]
    for step, seconds in ((118, 20.0), (119, 10.0), (120, 10.0)):
        append(tmp_path, step, training(step, seconds))
    assert lines.read_new() == [
        "step 118 of 120  20 s  1 min left",
        "step 119 of 120  10 s  30 s left",
        "step 120 of 120  10 s",
    ]
    assert lines.read_new() == [] and lines.step == 120


FAULTS = {"environment/faults/lost": 2.0, "environment/faults/boot": 1.0, "environment/dropped_sessions": 1.0}
VALIDATED = {"val-aux/arpo_verl/success/mean@1": 0.5}
ROWS = {
    (1, None, "step 1  60 s"): training(1),
    (2, None, "step 2  success  50.0%  replays 3  60 s"): training(
        2, **{"rollout/success_mean": 0.5, "replay/injected": 3.0}
    ),
    (3, None, "step 3  replays 3 (beside groups: 2)  60 s"): training(
        3, **{"replay/injected": 3.0, "replay/added": 2.0}
    ),
    (1, 1, "step 1 of 1  faults 3 (episodes dropped: 1)  60 s"): training(1, **FAULTS),
    (0, 8, "validation before the first step: success 50.0%"): VALIDATED,
    (7, 8, "validation after step 7: success 50.0%"): VALIDATED,
    (8, 8, "step 8 of 8  60 s  validation 50.0%"): training(8, **VALIDATED),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_line_says_what_was_logged(tmp_path, row):
    step, total, line = row
    append(tmp_path, step, ROWS[row])
    assert StepLines(tmp_path, total).read_new() == [line]
