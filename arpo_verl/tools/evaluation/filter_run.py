"""Runs a filter on desktops: it first finds tasks that doing nothing solves, then the policy plays the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo_verl.agent.actions.reply import Reply
from arpo_verl.agent.harness.policy_chat import PolicyChat
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import Conversation
from arpo_verl.agent.rollout.scripted import ScriptedConversation
from arpo_verl.errors import ConfigError
from arpo_verl.tasks.schema import INFEASIBLE
from arpo_verl.tools.evaluation.filtering import Fate, FilteredTask, FilterRuns, count_runs, decide
from arpo_verl.tools.evaluation.keep_rule import KeepRule
from arpo_verl.tools.evaluation.policy import Policy, Sampling
from arpo_verl.tools.evaluation.results import Trial
from arpo_verl.tools.evaluation.runner import EvaluationSettings, evaluate
from arpo_verl.tools.evaluation.schedule import EachRun
from arpo_verl.tools.evaluation.statistics import SOLVED
from arpo_verl.tools.evaluation.training_list import Filtered
from arpo_verl.types import Finish, Task

DO_NOTHING_FOLDER = "do_nothing"


class DoNothing:
    """A policy whose first reply says that the task is done."""

    facts: Mapping[str, Any] = {"model": "do_nothing"}

    def conversation(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> Conversation:
        """See `Policy`."""
        format = config.family.format
        return ScriptedConversation(lambda screen: format(Reply(thought="", actions=(Finish(),)), screen, screen))

    def chat(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> PolicyChat:
        """See `Policy`.

        Raises:
            ConfigError: always; nobody knows which reply a harness takes for the end.
        """
        raise ConfigError("gui_agent.harness must be null where nothing is done")


def filter_tasks(
    out: Path,
    tasks: Sequence[Task],
    rule: KeepRule,
    policy: Policy,
    settings: EvaluationSettings,
    *,
    error: float,
    group_size: int,
    skip_infeasible: bool = False,
) -> Filtered:
    """Play until every task's fate is settled; recorded episodes count, as in `evaluate`.

    Args:
        out: an evaluation's folder; with the same settings and tasks, it is continued.
        settings: settings with one turn budget.
        error: see `FilterRuns`.
        group_size: size of the groups in training.
        skip_infeasible: leave out tasks whose right answer is FAIL.

    Raises:
        As `evaluate`.
    """
    (max_steps,) = settings.budgets
    fates = {task.task_id: Fate.INFEASIBLE for task in tasks if skip_infeasible and _is_infeasible(task)}
    fates |= _without_a_policy(out / DO_NOTHING_FOLDER, [task for task in tasks if task.task_id not in fates], settings)
    asked = [task.task_id for task in tasks if task.task_id not in fates]
    evaluated = evaluate(out, tasks, FilterRuns(asked, rule, max_steps, error), policy, settings)
    rates = count_runs(evaluated, rule, max_steps)
    decided = {task.task_id: task for task in decide(rates, asked, evaluated.faults, rule, error)}
    listed = [decided.get(task.task_id) or FilteredTask(task.task_id, fates[task.task_id]) for task in tasks]
    return Filtered(rule, error, group_size, listed, rates)


def _is_infeasible(task: Task) -> bool:
    return bool(task.spec["evaluator"].get("func") == INFEASIBLE)


def _without_a_policy(out: Path, tasks: Sequence[Task], settings: EvaluationSettings) -> dict[str, Fate]:
    """Return fates that need no policy: tasks that doing nothing solves, and tasks where we could not find that out."""
    if not tasks:
        return {}
    agent = settings.agent  # doing nothing is the same whichever program does it
    if agent.harness is not None:
        agent = dataclasses.replace(agent, harness=None, max_screenshots=None)
    one_turn = dataclasses.replace(settings, agent=agent, budgets=(1,))
    evaluated = evaluate(out, tasks, EachRun([task.task_id for task in tasks], 1, [1]), DoNothing(), one_turn)
    fates = {result.task_id: Fate.DOING_NOTHING for result in evaluated.results if result.success >= SOLVED}
    return fates | {fault.task_id: Fate.NO_VERDICT for fault in evaluated.faults}
