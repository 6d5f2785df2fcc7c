"""A filter on fake desktops, also as one types it, and the list that it leaves."""

import contextlib
import json

import pytest
from support.evaluation_run import DONE, HIT, TASKS, Scripted, pool_of, settings
from support.fake_pool import MISS, FakePool

from arpo_verl.agent.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.desktops.fake import FakeEnvironment, FakeScript
from arpo_verl.errors import ConfigError
from arpo_verl.tasks import load_tasks
from arpo_verl.tools.cli import playing
from arpo_verl.tools.cli.main import main
from arpo_verl.tools.evaluation.filter_run import filter_tasks
from arpo_verl.tools.evaluation.filtering import Fate
from arpo_verl.tools.evaluation.folder import EvaluationFolder
from arpo_verl.tools.evaluation.keep_rule import KeepRule
from arpo_verl.tools.evaluation.training_list import write_training_list
from arpo_verl.types import Evaluation, Size, Task

RULE = KeepRule.parse("1 <= successes <= 3", 4)
EVALUATOR = {
    "func": "exact_match",
    "result": {"type": "vm_file", "path": "/x", "dest": "x"},
    "expected": {"type": "rule", "rules": {"expected": "x"}},
}
NAMES = {"mixed": "os", "never": "os", "always": "chrome"}
PLAYED = [
    Task(name, f"Do {name}.", {"id": name, "instruction": f"Do {name}.", "evaluator": EVALUATOR}, domain)
    for name, domain in NAMES.items()
]
INFEASIBLE = Task("no", "Do no.", {"id": "no", "instruction": "Do no.", "evaluator": {"func": "infeasible"}}, "os")


class ByTask(Scripted):
    """Solves `mixed` in every second run, `always` always, and nothing else."""

    def conversation(self, config, sampling, trial):
        self.begun(trial)
        solves = trial.task_id == "always" or (trial.task_id == "mixed" and trial.run % 2)
        return ScriptedConversation(replies_of([HIT if solves else MISS, DONE]), Size(364, 252))


def run_filter(out, tasks, *scripts, policy=None, desktops=1, **options):
    options = {"error": 0.0, "group_size": 4, **options}
    with pool_of(FakePool(*scripts)):
        return filter_tasks(out, tasks, RULE, policy or ByTask(), settings(desktops=desktops), **options)


def test_the_list_is_what_the_rule_keeps(tmp_path):
    begun = []
    filtered = run_filter(tmp_path, [*PLAYED, INFEASIBLE], policy=ByTask(begun=begun.append), skip_infeasible=True)
    assert {task.task_id: task.fate for task in filtered.tasks} == {
        "mixed": Fate.KEPT,
        "never": Fate.TOO_FEW,
        "always": Fate.TOO_MANY,
        "no": Fate.INFEASIBLE,
    }
    assert filtered.episodes == len(begun) == 2 + 4 + 4
    folder = write_training_list(tmp_path, filtered, [*PLAYED, INFEASIBLE])
    (task,) = load_tasks(folder)
    assert task == PLAYED[0] and task.domain == "os"
    assert json.loads((folder / "test_all.json").read_text()) == {"os": ["mixed"]}
    assert (folder / "list.txt").read_text() == "mixed  # 1 of 2 runs solved it\n"
    assert [task.task_id for task in load_tasks(folder / "list.txt")] == ["mixed"]
    content = json.loads((tmp_path / "filter.json").read_text())
    assert content["counts"]["kept"] == 1 and content["expected_to_differ"] == 0
    assert [task["fate"] for task in content["tasks"]][0] == "kept"
    assert 0 < content["groups"]["list"]["informative"] <= content["groups"]["list"]["with_replay"] <= 1
    assert "10 episodes played, 17% fewer than all runs" in str(filtered)
    assert "every fate is certain" in str(filtered)


def test_what_doing_nothing_solves_is_named_and_not_played(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(FakeEnvironment, "evaluate", lambda desktop: Evaluation(1.0))
    filtered = run_filter(tmp_path, PLAYED[:1], policy=ByTask(begun=begun.append))
    assert [task.fate for task in filtered.tasks] == [Fate.DOING_NOTHING] and begun == []
    assert "doing nothing solves it on this desktop: mixed" in str(filtered)
    (result,) = EvaluationFolder(tmp_path / "do_nothing").read().results
    assert (result.success, result.turns) == (1.0, 1)


def test_infrastructure_decides_no_fate(tmp_path):
    broken = FakeScript(fail={"evaluate": [-1]})
    filtered = run_filter(tmp_path, PLAYED[:1], broken)
    assert [task.fate for task in filtered.tasks] == [Fate.NO_VERDICT]
    assert write_training_list(tmp_path, filtered, PLAYED).is_dir()
    assert run_filter(tmp_path, PLAYED[:1]).tasks[0].fate is Fate.KEPT


def test_a_filter_goes_on_with_an_evaluation(tmp_path):
    begun = []
    first = run_filter(tmp_path, PLAYED)
    again = run_filter(tmp_path, PLAYED, policy=ByTask(begun=begun.append))
    assert begun == [] and again == first
    with pytest.raises(ConfigError, match="tasks are new, gone or changed"):
        run_filter(tmp_path, TASKS)


def test_an_empty_list_is_written_and_an_infeasible_task_is_one_like_others_unless_it_is_to_be_left_out(tmp_path):
    filtered = run_filter(tmp_path, [INFEASIBLE])
    (task,) = filtered.tasks
    assert (task.fate, task.runs) == (Fate.TOO_FEW, 4)
    folder = write_training_list(tmp_path, filtered, [INFEASIBLE])
    assert filtered.outlooks["list"] is None and (folder / "test_all.json").read_text() == "{}\n"


@pytest.mark.parametrize(
    ("tasks", "script", "status", "told"),
    [
        (
            "tasks",
            FakeScript(),
            0,
            ("2 tasks; 6 episodes played, 25% fewer", "too few", "data.train_files=", "of 8 on"),
        ),
        ("tasks/os/never.json", FakeScript(), 1, ("no task was kept",)),
        ("tasks", FakeScript(fail={"evaluate": [-1]}), 1, ("failed the episode that does nothing: mixed, never",)),
    ],
    ids=["list", "nothing", "faults"],
)
def test_the_command_leaves_a_list_and_says_what_is_on_it(tmp_path, monkeypatch, capsys, tasks, script, status, told):
    @contextlib.contextmanager
    def open_policy(*_):
        yield ByTask(begun=lambda trial: seen.append(trial.max_steps))

    seen = []
    monkeypatch.setattr(playing, "open_policy", open_policy)
    (tmp_path / "tasks" / "os").mkdir(parents=True)
    for task in PLAYED[:2]:
        (tmp_path / "tasks" / "os" / f"{task.task_id}.json").write_text(json.dumps(task.spec))
    command = ["filter-tasks", "--provider", "fake", "--option", "retry_backoff_s=0", "--desktops", "1", "--error", "0"]
    command += ["--tasks", str(tmp_path / tasks), "--out", str(tmp_path / "out"), "--model", "none", "--runs", "4"]
    with pool_of(FakePool(script)):
        assert main(command) == status
    printed = capsys.readouterr().out
    assert all(words in printed for words in told) and set(seen) <= {15}
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["settings"]["temperature"] == 1.0
    assert json.loads((tmp_path / "out" / "filter.json").read_text())["counts"].get("kept", 0) == (status == 0)
    assert (tmp_path / "out" / "results.md").is_file()
