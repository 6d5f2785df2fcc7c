"""What the page is given of an evaluation."""

import json

import pytest
from support.viewer_run import ViewerRun

from arpo_verl.records.run import open_run
from arpo_verl.tools.viewer.documents import run_document
from arpo_verl.tools.viewer.evaluation import evaluation_document

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
    document = json.loads(json.dumps(evaluation_document(run)))
    assert document == {"table": [ROW], "tasks": [{"task_id": "a", "domain": "os", "runs": [RUN]}]}


@pytest.mark.parametrize("odd", [{"table": [7]}, {"table": [{"budget": "many"}]}, {"tasks": [{"runs": []}]}, []])
def test_results_of_other_types_are_none(tmp_path, odd):
    assert evaluation_document(opened(tmp_path, odd)) == {"table": [], "tasks": []}
