"""On real desktops: an evaluation of a policy that solves its tasks by a script, and a filter, which finds what doing
nothing solves there and keeps what a policy sometimes solves."""

import copy

import pytest

from arpo_verl.agent.actions.ui_tars import format_reply
from arpo_verl.agent.models.family import load_family
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.tasks.expert import EXPERT_SCREEN, expert_replies
from arpo_verl.tasks.loader import EMBEDDED_DIR, load_tasks
from arpo_verl.tools.evaluation.filter_run import filter_tasks
from arpo_verl.tools.evaluation.filtering import Fate
from arpo_verl.tools.evaluation.folder import EvaluationFolder
from arpo_verl.tools.evaluation.keep_rule import KeepRule
from arpo_verl.tools.evaluation.runner import EvaluationSettings, evaluate
from arpo_verl.tools.evaluation.schedule import EachRun
from arpo_verl.types import Task

pytestmark = pytest.mark.desktop
SOLVED = ("form-order-juice", "infeasible-bluetooth")


class ExpertAtTimes:
    """Plays the expert's script in every second run, and the beginning of it in the others."""

    facts = {"model": "expert at times"}

    def conversation(self, config, sampling, trial):
        replies = expert_replies("entry-type-name")
        played = replies if trial.run % 2 == 0 else replies[-1:]
        texts = [load_family("ui_tars_15").format(reply, EXPERT_SCREEN, EXPERT_SCREEN) for reply in played]
        return ScriptedConversation(replies_of(texts), EXPERT_SCREEN)


@pytest.mark.release
def test_a_task_that_is_solved_as_it_begins_is_named_and_not_played(local_ray, tmp_path):
    (task,) = load_tasks(EMBEDDED_DIR / "entry-type-name.json")
    begun = copy.deepcopy(dict(task.spec)) | {"id": "begun"}
    begun["evaluator"] = {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": "echo done", "shell": True},
        "expected": {"type": "rule", "rules": {"expected": "done\n"}},
    }
    tasks = [task, Task("begun", task.instruction, begun)]
    settings = EvaluationSettings(
        EnvironmentConfig(num_desktops=1, screen_size=EXPERT_SCREEN, retry_backoff_s=0),
        GuiAgentConfig(max_screenshots=None),
    )
    rule = KeepRule.parse("1 <= successes <= 3", 4)
    filtered = filter_tasks(tmp_path, tasks, rule, ExpertAtTimes(), settings, error=0, group_size=4)
    found = {one.task_id: (one.fate, one.solved, one.runs) for one in filtered.tasks}
    assert found == {task.task_id: (Fate.KEPT, 1, 2), "begun": (Fate.DOING_NOTHING, 0, 0)}


class Expert:
    facts = {"model": "expert"}

    def conversation(self, config, sampling, trial):
        replies = expert_replies(trial.task_id)
        return ScriptedConversation(replies_of(format_reply(one, EXPERT_SCREEN, EXPERT_SCREEN) for one in replies))


@pytest.mark.release
def test_the_expert_solves_its_tasks_and_not_in_one_step(local_ray, tmp_path):
    tasks = [task for task in load_tasks("embedded") if task.task_id in SOLVED]
    settings = EvaluationSettings(EnvironmentConfig(num_desktops=2), GuiAgentConfig(max_screenshots=None), (1, 15))
    found = evaluate(tmp_path / "e", tasks, EachRun(SOLVED, 1, settings.budgets), Expert(), settings)
    assert found == EvaluationFolder(tmp_path / "e").read() and not found.faults
    scores = {(result.task_id, result.budget): result.success for result in found.results}
    assert [scores[task_id, 15] for task_id in SOLVED] == [1.0, 1.0]
    assert scores["form-order-juice", 1] == 0.0
    # The first budget was read off the same episodes: its evaluator only looks.
    assert len(list((tmp_path / "e" / "trajectories" / "step_000000").iterdir())) == len(SOLVED)
