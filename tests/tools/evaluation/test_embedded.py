"""An evaluation on real desktops, of a policy that solves its tasks by a script."""

import pytest

pytest.importorskip("ray")

from arpo_verl.agent.actions.ui_tars import format_reply
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.tasks.expert import EXPERT_SCREEN, expert_replies
from arpo_verl.tasks.loader import load_tasks
from arpo_verl.tools.evaluation.folder import EvaluationFolder
from arpo_verl.tools.evaluation.runner import EvaluationSettings, evaluate
from arpo_verl.tools.evaluation.schedule import EachRun

TASKS = ("form-order-juice", "infeasible-bluetooth")


class Expert:
    facts = {"model": "expert"}

    def conversation(self, config, sampling, trial):
        replies = expert_replies(trial.task_id)
        return ScriptedConversation(replies_of(format_reply(one, EXPERT_SCREEN, EXPERT_SCREEN) for one in replies))


@pytest.mark.release
@pytest.mark.desktop
def test_the_expert_solves_its_tasks_and_not_in_one_step(tmp_path):
    tasks = [task for task in load_tasks("embedded") if task.task_id in TASKS]
    settings = EvaluationSettings(EnvironmentConfig(num_desktops=2), GuiAgentConfig(max_screenshots=None), (1, 15))
    found = evaluate(tmp_path / "e", tasks, EachRun(TASKS, 1, settings.budgets), Expert(), settings)
    assert found == EvaluationFolder(tmp_path / "e").read() and not found.faults
    scores = {(result.task_id, result.budget): result.success for result in found.results}
    assert [scores[task_id, 15] for task_id in TASKS] == [1.0, 1.0]
    assert scores["form-order-juice", 1] == 0.0
    # The first budget was read off the same episodes: its evaluator only looks.
    assert len(list((tmp_path / "e" / "trajectories" / "step_000000").iterdir())) == len(TASKS)
