"""`frontier.jsonl`: written by the trainer, read while it grows."""

from arpo_verl.records.frontier import append_estimates
from arpo_verl.tasks.frontier import TaskEstimate


def estimate(task_id, rate=0.5, drawn=1):
    return TaskEstimate(task_id, rate, 0.1, 0.9, drawn, 0.25)


def test_the_last_estimate_of_each_task_is_read_as_the_file_grows(written, run):
    path = written.trajectories / "frontier.jsonl"
    assert run.frontier() == []
    path.write_text('{"step":1,"tasks":[1,{"task_id":2},{"task_id":"a","rate":"1"}]}\n{"step":null,"tasks":[]}\n{"ste')
    assert run.frontier() == [], "no line is one of estimates"
    append_estimates(path, 1, [estimate("b"), estimate("a")])
    assert [(e.task_id, e.step) for e in run.frontier()] == [("a", 1), ("b", 1)]
    append_estimates(path, 2, [estimate("a", rate=0.75, drawn=2)])
    assert [(e.task_id, e.step, e.rate, e.drawn) for e in run.frontier()] == [("a", 2, 0.75, 2), ("b", 1, 0.5, 1)]
