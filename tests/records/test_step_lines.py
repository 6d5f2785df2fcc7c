"""A line a training step, from the metrics file as it grows."""

import json

from arpo_verl.records.step_lines import StepLines


def append(folder, step, **data):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "data": data}) + "\n")


def training(step, seconds=60.0, **more):
    return {"training/global_step": step, "timing_s/step": seconds, **more}


def test_each_step_is_told_once_with_the_time_that_is_left(tmp_path):
    lines = StepLines(tmp_path, total=120)
    assert lines.read_new() == [] and lines.step is None, "nothing was logged yet"
    append(tmp_path, 1, **training(1, 60.0))
    assert lines.read_new() == ["step   1 of 120  60 s  1 h 59 min left"]
    append(tmp_path, 118, **training(118, 20.0))
    append(tmp_path, 119, **training(119, 10.0))
    append(tmp_path, 120, **training(120, 10.0))
    assert lines.read_new() == [
        "step 118 of 120  20 s  1 min left",
        "step 119 of 120  10 s  30 s left",
        "step 120 of 120  10 s",
    ]
    assert lines.read_new() == [] and lines.step == 120


def test_what_a_run_does_not_log_is_left_out(tmp_path):
    append(tmp_path, 1, **training(1))
    append(tmp_path, 2, **training(2, **{"rollout/success_mean": 0.5, "replay/injected": 3.0}))
    lines = StepLines(tmp_path, total=None)
    assert lines.read_new() == ["step 1  60 s", "step 2  success  50.0%  replays 3  60 s"]


def test_faults_of_all_kinds_are_one_number_and_dropped_episodes_are_told(tmp_path):
    faults = {"environment/faults/lost": 2.0, "environment/faults/boot": 1.0, "environment/dropped_sessions": 1.0}
    append(tmp_path, 1, **training(1, **faults))
    assert StepLines(tmp_path, total=1).read_new() == ["step 1 of 1  faults 3 (episodes dropped: 1)  60 s"]


def test_validations_have_a_line_before_and_between_and_none_of_their_own_after_a_step(tmp_path):
    success = {"val-aux/arpo_verl/success/mean@1": 0.5}
    append(tmp_path, 0, **success)
    append(tmp_path, 7, **success)
    append(tmp_path, 8, **training(8, **success))
    assert StepLines(tmp_path, total=8).read_new() == [
        "validation before the first step: success 50.0%",
        "validation after step 7: success 50.0%",
        "step 8 of 8  60 s  validation 50.0%",
    ]
