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
NONE = {"table": [], "tasks": []}
TASKS = [{"task_id": "a", "domain": "os", "runs": [RUN]}]


@pytest.mark.parametrize(
    ("content", "document"),
    [
        (None, NONE),
        ({"table": [ROW], "tasks": TASKS}, {"table": [ROW], "tasks": TASKS}),
        *((odd, NONE) for odd in ({"table": [7]}, {"table": [{"budget": "many"}]}, {"tasks": [{"runs": []}]}, [])),
    ],
)
def test_tables_and_runs_are_handed_over_and_results_of_other_types_are_none(tmp_path, content, document):
    run = ViewerRun(tmp_path / "run")
    run.episode(1)
    if content is not None:
        (run.path / "results.json").write_text(json.dumps(content))
    run = open_run(run.path)
    assert run_document(run, run.snapshot(), live=False)["evaluation"] is (content is not None)
    assert json.loads(json.dumps(evaluation_document(run))) == document
