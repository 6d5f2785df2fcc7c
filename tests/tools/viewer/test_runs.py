"""A folder of runs: their list, their curves, two of them paired, and that nothing beside them is served."""

import json

import pytest
import requests
from support.viewer_run import ViewerRun
from support.viewer_server import served

from arpo_verl.records.runs import RunsFolder
from arpo_verl.tools.evaluation.paired import pair
from arpo_verl.tools.viewer import runs
from arpo_verl.tools.viewer.runs import VALIDATION, RunsFeed, curves_document, pair_document

RECIPE = {"data.train_batch_size": 2, "actor_rollout_ref.rollout.n": 4}


def start(run, **content):
    line = {"time": 1_700_000_000, "versions": {}, "recipe": RECIPE, "total_steps": 9, **content}
    (run.path / "starts.jsonl").write_text(json.dumps(line) + "\n")


@pytest.fixture
def folder(tmp_path):
    """Two training runs, validated on three tasks, an evaluation of two of these, and what is no run."""
    root = tmp_path / "runs"
    for name, solved in (("arpo", 2), ("grpo", 1)):
        run = ViewerRun(root / name)
        start(run)
        for step in (1, 2):
            run.metrics(step, rollout__success_mean=0.25 * step, rollout__turns_mean=5.0, timing_s__step=1800.0)
            for number, task in enumerate("abc"):
                run.episode(step, task, f"v{step}", 0, float(number < solved), validation=True)
        run.metrics(2, **{"val-core__x__success__mean@1": 0.5}, timing_s__testing=1800.0)
        run.episode(2, "a", "t", 0, 0.0)
    evaluation = ViewerRun(root / "evaluation")
    row = {"budget": 15, "domain": None, "tasks": 2, "success": 0.75, "interval": [0.2, 0.9], "pass_at_k": []}
    tasks = [
        {"task_id": task, "runs": [{"run": i, "budget": 15, "success": s} for i, s in enumerate(scores)]}
        for task, scores in (("a", (1, 0)), ("c", (1, 1)))
    ]
    (evaluation.path / "results.json").write_text(json.dumps({"table": [row], "tasks": tasks}))
    (root / "notes").mkdir()
    (root / "link").symlink_to(root / "arpo")
    (root / "secret.txt").write_text("secret")
    return RunsFolder(root)


def test_the_runs_are_listed_with_their_headlines(folder):
    document = RunsFeed(folder).runs_document()
    assert document["name"] == "runs"
    arpo, evaluation, _ = document["runs"]
    assert [run["name"] for run in document["runs"]] == ["arpo", "evaluation", "grpo"]
    assert (arpo["kind"], arpo["live"], arpo["num_episodes"]) == ("training", False, 7)
    assert (arpo["steps"], arpo["total_steps"], arpo["validation_before"]) == (2, 9, 0.5)
    assert (arpo["first_steps_success"], arpo["last_steps_success"]) == (0.375, 0.375)
    assert (evaluation["kind"], evaluation["evaluation"]["success"]) == ("evaluation", 0.75)


def test_metrics_are_read_again_only_where_they_changed(folder, monkeypatch):
    feed, read = RunsFeed(folder), []
    feed.runs_document()
    monkeypatch.setattr(runs, "_summary", lambda path: read.append(path.name))
    feed.runs_document()
    assert read == []
    with (folder.path / "grpo" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 3, "data": {"rollout/success_mean": 1.0}}) + "\n")
    feed.runs_document()
    assert read == ["grpo"]


def test_curves_come_by_training_step_environment_steps_and_hours(folder):
    document = curves_document(folder, ["arpo", "grpo"], "rollout/success_mean")
    assert document["metrics"][:2] == [VALIDATION, "rollout/success_mean"]
    assert document["runs"][0] == {
        "name": "arpo",
        "steps": [1, 2],
        "environment_steps": [40, 80],
        "hours": [0.5, 1.5],
        "values": [0.25, 0.5],
    }
    validated = curves_document(folder, ["arpo"], VALIDATION)["runs"][0]
    assert (validated["steps"], validated["values"], validated["hours"]) == ([2], [0.5], [1.5])
    (folder.path / "arpo" / "starts.jsonl").unlink()  # which notes how many episodes a step has
    assert curves_document(folder, ["arpo"], "rollout/success_mean")["runs"][0]["environment_steps"] is None


def test_two_training_runs_are_paired_by_their_last_validation(folder, monkeypatch):
    document = pair_document(folder.run("arpo"), folder.run("grpo"))
    assert document["first"] == {"name": "arpo", "what": "validation after training step 2", "tasks": 3}
    expected = pair([1.0, 1.0, 0.0], [1.0, 0.0, 0.0])
    assert document["paired"]["difference"] == expected.difference == pytest.approx(-1 / 3)
    assert tuple(document["paired"]["interval"]) == expected.interval
    assert document["tasks"][0] == {"task_id": "b", "first": 1.0, "second": 0.0}
    monkeypatch.setattr(runs, "MOST_PAIRED", 2)
    document = pair_document(folder.run("arpo"), folder.run("grpo"))
    assert (document["paired"]["tasks"], document["left_out"]) == (2, 1)


def test_a_training_run_is_paired_with_an_evaluation_on_the_tasks_of_both(folder):
    document = pair_document(folder.run("arpo"), folder.run("evaluation"))
    assert document["second"]["what"] == "evaluation of at most 15 turns"
    assert (document["paired"]["tasks"], document["paired"]["second"]) == (2, 0.75)
    ViewerRun(folder.path / "new")
    document = pair_document(folder.run("arpo"), folder.run("new"))
    assert (document["paired"], document["tasks"]) == (None, [])
    assert document["second"]["what"] == "no recorded validation"


def test_each_run_has_its_pages(folder):
    with served(folder) as url:
        assert 'data-place="runs"' in requests.get(url).text
        assert [run["name"] for run in requests.get(url + "api/runs").json()["runs"]] == ["arpo", "evaluation", "grpo"]
        assert 'data-place="run"' in requests.get(url + "run/arpo/").text
        assert requests.get(url + "run/arpo/assets/app.js").status_code == 200
        run = requests.get(url + "run/grpo/api/run").json()
        assert (run["name"], run["num_episodes"]) == ("grpo", 7)
        assert requests.get(url + "run/arpo/shots/step_000001/a__v1_0/00.png").headers["content-type"] == "image/png"
        curves = requests.get(url + "api/curves", params={"run": ["arpo", "grpo"]}).json()
        assert [one["values"] for one in curves["runs"]] == [[0.25, 0.5]] * 2
        assert requests.get(url + "api/pair", params={"first": "arpo", "second": "grpo"}).json()["paired"]["tasks"] == 3


# As they stand, not tidied up.
PATHS = [
    "run/none/api/run",
    "run/link/api/run",
    "run/notes/api/run",
    "run/../secret.txt",
    "run/%2e%2e/api/run",
    "run/..%2fruns%2farpo/api/run",
    "run/arpo/../../secret.txt",
    "run/arpo/shots/..%2f..%2f/secret.txt",
    "run/arpo",
    "secret.txt",
    "api/curves?run=..",
    "api/curves?run=link",
    "api/pair?first=arpo&second=../runs/arpo",
    "api/run",
]


def test_nothing_but_the_folder_s_runs_is_served(folder):
    with served(folder) as url, requests.Session() as session:
        for path in PATHS:
            request = session.prepare_request(requests.Request("GET", url))
            request.url = url + path
            answer = session.send(request)
            assert answer.status_code == 404 and "secret" not in answer.text.replace("secret.txt", ""), path


def test_hostile_results_and_metrics_cost_themselves_and_not_the_list(folder):
    results = '{"table": [{"domain": null, "budget": "x"}, 7], "tasks": 3}'
    (folder.path / "evaluation" / "results.json").write_text(results)
    (folder.path / "arpo" / "metrics.jsonl").write_text('{"step": 1e9, "data": 3}\n[]\nx')
    (folder.path / "arpo" / "starts.jsonl").write_text('{"recipe": {}, "versions": {}, "total_steps": "many"}\n')
    arpo, evaluation, _ = RunsFeed(folder).runs_document()["runs"]
    assert (arpo["steps"], arpo["total_steps"]) == (None, None)
    assert evaluation["evaluation"] is None
    assert pair_document(folder.run("arpo"), folder.run("evaluation"))["paired"] is None


def test_few_runs_stay_in_memory(tmp_path):
    for number in range(6):
        ViewerRun(tmp_path / "many" / f"run-{number}")
    folder = RunsFolder(tmp_path / "many")
    first = folder.run("run-0")
    assert folder.run("run-0") is first
    for name in folder.names()[1:]:
        folder.run(name)
    assert folder.run("run-0") is not first
