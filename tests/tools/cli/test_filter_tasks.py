"""`arpo-verl filter-tasks` as one types it, on fake desktops."""

import contextlib
import json

import pytest
from support.evaluation_run import DONE, HIT, Scripted, pool_of
from support.fake_pool import MISS, FakePool

from arpo_verl.agent.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.desktops.fake import FakeScript
from arpo_verl.tasks import load_tasks
from arpo_verl.tools.cli import playing
from arpo_verl.tools.cli.main import main
from arpo_verl.types import Size

EVALUATOR = {
    "func": "exact_match",
    "result": {"type": "vm_file", "path": "/x", "dest": "x"},
    "expected": {"type": "rule", "rules": {"expected": "x"}},
}


class Sometimes(Scripted):
    """Solves `mixed` in every second run."""

    def conversation(self, config, sampling, trial):
        assert (sampling.temperature, trial.max_steps) == (1.0, 15)
        solves = trial.task_id == "mixed" and trial.run % 2
        return ScriptedConversation(replies_of([HIT if solves else MISS, DONE]), Size(364, 252))


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Run the command on two tasks; returns its exit status."""

    @contextlib.contextmanager
    def open_policy(*_):
        yield Sometimes()

    monkeypatch.setattr(playing, "open_policy", open_policy)
    for name in ("mixed", "never"):
        file = tmp_path / "tasks" / "os" / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"id": name, "instruction": f"Do {name}.", "evaluator": EVALUATOR}))

    def run(*options, tasks="tasks", script=None):
        paths = ["--tasks", str(tmp_path / tasks), "--out", str(tmp_path / "out")]
        with pool_of(FakePool(script or FakeScript())):
            fake = ["--provider", "fake", "--option", "retry_backoff_s=0", "--desktops", "1"]
            return main(["filter-tasks", *fake, *paths, "--model", "none", "--runs", "4", *options])

    return run


def test_it_leaves_a_list_and_says_what_is_on_it(start, tmp_path, capsys):
    assert start("--error", "0") == 0
    told = capsys.readouterr().out
    assert "2 tasks; 6 episodes played, 25% fewer than all runs" in told
    assert "1 too few successes" in told and f"data.train_files={tmp_path / 'out' / 'training_tasks'}" in told
    assert "groups of 8 on the list" in told
    assert [task.task_id for task in load_tasks(tmp_path / "out" / "training_tasks")] == ["mixed"]
    assert (tmp_path / "out" / "results.md").is_file()


def test_a_list_without_a_task_is_told(start, tmp_path, capsys):
    assert start("--error", "0", tasks="tasks/os/never.json") == 1
    assert "no task was kept" in capsys.readouterr().out


def test_tasks_that_faults_leave_open_are_named(start, capsys):
    assert start(script=FakeScript(fail={"evaluate": [-1]})) == 1
    assert "infrastructure failed the episode that does nothing: mixed, never" in capsys.readouterr().out
