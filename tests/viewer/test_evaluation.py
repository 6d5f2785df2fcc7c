"""What the page is given of an evaluation."""

import json

from support.viewer_run import ViewerRun

from arpo_verl.records.run import open_run
from arpo_verl.viewer.documents import run_document
from arpo_verl.viewer.evaluation import evaluation_document

ROW = {"budget": 15, "domain": None, "tasks": 2, "unscored": 0, "runs": 4, "faults": 1, "format_errors": 0}
ROW |= {"success": 0.5, "interval": [0.2, 0.8], "turns": 4.5, "pass_at_k": [{"k": 2, "value": 0.75, "tasks": 2}]}
RUN = {
    "run": 0,
    "budget": 15,
    "success": 1.0,
    "turns": 4,
    "episode_id": "step_000001/a__u_0",
    "stop_reason": "finished",
}


def opened(path, content):
    run = ViewerRun(path / "run")
    run.episode(1)
    if content is not None:
        (run.path / "results.json").write_text(json.dumps(content))
    return open_run(run.path)


def test_a_run_without_results_is_no_evaluation(tmp_path):
    run = opened(tmp_path, None)
    assert run_document(run, run.snapshot(), live=False)["evaluation"] is False
    assert evaluation_document(run) == {"table": [], "tasks": []}


def test_tables_and_runs_are_handed_over(tmp_path):
    run = opened(tmp_path, {"table": [ROW], "tasks": [{"task_id": "a", "domain": "os", "runs": [RUN]}]})
    assert run_document(run, run.snapshot(), live=False)["evaluation"] is True
    assert evaluation_document(run) == {"table": [ROW], "tasks": [{"task_id": "a", "domain": "os", "runs": [RUN]}]}


def test_results_of_somebody_elses_making_have_the_types_that_the_page_counts_on(tmp_path):
    rows = [7, {"budget": "many", "interval": [1], "pass_at_k": [None, {"k": []}], "success": "<b>"}]
    run = opened(tmp_path, {"table": rows, "tasks": [{"runs": {"0": 1}}, {"task_id": 5, "runs": [{"success": True}]}]})
    document = evaluation_document(run)
    (row,) = document["table"]
    assert (row["budget"], row["interval"], row["success"]) == (None, None, None)
    assert row["pass_at_k"] == [{"k": None, "value": None, "tasks": None}]
    assert [task["runs"] for task in document["tasks"]][0] == []
    assert document["tasks"][1]["task_id"] == "5" and document["tasks"][1]["runs"][0]["success"] is None
