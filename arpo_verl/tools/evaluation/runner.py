"""Plays a scheduler's trials, with the loop, prompts, parser, pool and recorder of a training run.

    evaluate(out, tasks, EachRun([task.task_id for task in tasks], 8, [15]), policy, settings)

Only records on disk count: the same call resumes a killed run, and plays nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from arpo_verl.agent.harness.loading import Program, load_program
from arpo_verl.agent.harness.player import play_by
from arpo_verl.agent.models.family import FULL
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.episode import Episode, LeasedDesktop, Watcher, play
from arpo_verl.agent.rollout.scoring import score_episode
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.attempts import attempt_until_whole
from arpo_verl.desktops.pool.desktop_pool import MESSAGE_CHARACTERS, DesktopPool, Session
from arpo_verl.desktops.pool.own_pool import own_pool
from arpo_verl.errors import ConfigError, DesktopError, GenerationError, RequestError
from arpo_verl.lib.config import require
from arpo_verl.records.recorder import Recorder
from arpo_verl.reward import compute_score
from arpo_verl.tools.evaluation.folder import EvaluationFolder, uid_of
from arpo_verl.tools.evaluation.midway import why_not_midway
from arpo_verl.tools.evaluation.policy import Policy, Sampling
from arpo_verl.tools.evaluation.results import Evaluated, FailedTrial, Result, Trial
from arpo_verl.tools.evaluation.schedule import Scheduler
from arpo_verl.types import Task

TrialOutcome = tuple[Result, ...] | FailedTrial

FAULTS_IN_A_ROW = 8
"""If so many trials in a row fail because of the policy's engine or the harness, we take it for gone."""

_OF_RESULTS = (
    *("provider", "screen_size", "path_to_vm", "region", "snapshot", "os_type", "proxy", "action_pause_s"),
    *("settle_timeout_s", "settle_interval_s", "wait_s", "setup_pause_s", "evaluate_pause_s", "evaluator_hosts"),
    "evaluator_runs_policy_code",
)
"""The fields of `environment` that a score may depend on; the others set where desktops run and how many."""


@dataclass(frozen=True)
class EvaluationSettings:
    """How to play episodes.

    Raises:
        ConfigError: a value is wrong.
    """

    environment: EnvironmentConfig
    agent: GuiAgentConfig
    """The section `gui_agent`. The largest budget replaces its `max_steps`; its options of records are ignored."""
    budgets: Sequence[int] = (15,)
    """Turn budgets; each gets its own score."""
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        ok = bool(self.budgets) and all(type(budget) is int and budget > 0 for budget in self.budgets)
        require(ok, "--max-steps", "one turn budget from 1 or several, such as 15,50", self.budgets)
        object.__setattr__(self, "budgets", tuple(sorted(set(self.budgets))))

    def facts(self, policy: Policy) -> dict[str, Any]:
        """Return all that a result depends on, except its task, as JSON."""
        names = ("model_family", "language", "max_reply_tokens", "between_actions_s")
        agent = {name: getattr(self.agent, name) for name in names}
        if self.agent.context != FULL:  # only then, so that older evaluations, all with FULL, can continue
            agent |= {name: getattr(self.agent, name) for name in ("context", "row_screenshots", "screenshots_kept")}
        if self.agent.harness is not None:
            agent |= {name: getattr(self.agent, name) for name in ("harness", "harness_shell", "harness_network")}
            variables = json.dumps(dict(self.agent.harness_env), sort_keys=True)  # which may hold a key
            agent["harness_env_sha256"] = sha256(variables.encode()).hexdigest()
        return {
            "max_steps": list(self.budgets),
            "max_screenshots": self.agent.max_screenshots,
            **agent,
            **dataclasses.asdict(self.sampling),
            "policy": dict(policy.facts),
            "environment": {name: getattr(self.environment, name) for name in _OF_RESULTS},
        }

    def agent_of(self, trial: Trial, trajectories: Path) -> GuiAgentConfig:
        """Return the section `gui_agent` of a trial, with every episode recorded completely."""
        most = self.agent.max_screenshots
        if most is not None and self.agent.context == FULL and self.agent.harness is None:
            most = min(most, trial.max_steps)
        return dataclasses.replace(
            self.agent,
            max_steps=trial.max_steps,
            max_screenshots=most,
            record="all",
            record_share=1.0,
            trajectory_budget_bytes=None,
            trajectory_dir=str(trajectories),
        )


def evaluate(
    out: Path, tasks: Sequence[Task], scheduler: Scheduler, policy: Policy, settings: EvaluationSettings
) -> Evaluated:
    """Play all of the scheduler's trials that are not on disk yet; desktops run only during this call.

    If infrastructure failures lose a trial `environment.max_attempts` times, it is a `FailedTrial` without a score; it
    is repeated when the evaluation resumes.

    Args:
        out: the evaluation's folder; see `evaluation.folder`.
        tasks: all tasks that the scheduler may ask for.

    Raises:
        ConfigError: the folder has another evaluation or is in use, the policy's server refuses us, or the harness
            cannot be loaded.
        GenerationError: the policy's engine or the harness fails every trial; earlier episodes are on disk.
        OSError: a record cannot be written.
    """
    program = None if settings.agent.harness is None else load_program(settings.agent)
    with EvaluationFolder.held(out, settings.facts(policy), tasks) as folder, ExitStack() as stack:
        stack.enter_context(logging_redirect_tqdm())
        progress = stack.enter_context(_Progress(settings.budgets[-1]))
        by_id = {task.task_id: task for task in tasks}
        evaluation = _Evaluation(folder, by_id, scheduler, policy, settings, program, progress, stack)
        asyncio.run(evaluation.play_all())
        return folder.read()


@dataclass
class _Evaluation:
    """One start of an evaluation. It makes the pool for the first trial, in `stack`."""

    folder: EvaluationFolder
    tasks: Mapping[str, Task]
    scheduler: Scheduler
    policy: Policy
    settings: EvaluationSettings
    program: Program | None
    progress: _Progress
    stack: ExitStack
    pool: DesktopPool | None = None
    failed_in_a_row: int = 0

    async def play_all(self) -> None:
        running: dict[asyncio.Task[TrialOutcome], Trial] = {}
        try:
            while True:
                free = self.settings.environment.num_desktops - len(running)
                trials = self.scheduler.next_trials(free) if free else []
                for trial in trials:
                    recorded = self.folder.results(trial)
                    if recorded is not None:
                        self._finish(trial, recorded, is_new=False)
                    else:
                        running[asyncio.create_task(self._play(trial))] = trial
                if trials:
                    continue
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._finish(running.pop(task), task.result())
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _finish(self, trial: Trial, outcome: TrialOutcome, *, is_new: bool = True) -> None:
        self.scheduler.finished(trial, outcome)
        self.progress.finished(trial, outcome, self.scheduler.expected, is_new)

    async def _play(self, trial: Trial) -> TrialOutcome:
        task = self.tasks[trial.task_id]
        config = self.settings.agent_of(trial, self.folder.trajectories)
        recorder = Recorder(config, _validates)
        row = {"uid": uid_of(trial), "session_id": trial.run, "global_steps": 0}

        async def attempt(session: Session, unclear_losses: int) -> None:
            async with recorder.episode(row, task) as writer:
                async with session.lease() as desktop:
                    writer.begin(f"{desktop.name} on {desktop.host}")
                    episode = await self._episode(task, trial, desktop, config, writer)
                await writer.finish(episode, await score_episode(compute_score, episode, "", row, unclear_losses))

        try:
            await attempt_until_whole(self._desktops(), self.settings.environment, trial.task_id, attempt)
        except (DesktopError, GenerationError, RequestError) as error:
            return self._fault(trial, error)
        except ConfigError as error:
            raise ConfigError(f"{error} (task {trial.task_id})") from error
        self.failed_in_a_row = 0
        results = self.folder.results(trial)
        if results is None:
            raise OSError(f"an episode of {trial.task_id} was not recorded in {self.folder.path}; the log says why")
        return results

    async def _episode(
        self, task: Task, trial: Trial, desktop: LeasedDesktop, config: GuiAgentConfig, writer: Watcher
    ) -> Episode:
        """Have our loop play, or the harness."""
        sampling = self.settings.sampling
        if self.program is not None:
            return await play_by(self.program, task, desktop, self.policy.chat(config, sampling, trial), config, writer)
        budgets = self.settings.budgets if why_not_midway(task) is None else ()
        conversation = self.policy.conversation(config, sampling, trial)
        return await play(task, desktop, conversation, config, writer, evaluate_after=budgets)

    def _fault(self, trial: Trial, error: Exception) -> FailedTrial:
        fault = FailedTrial(
            trial.task_id, trial.run, trial.max_steps, type(error).__name__, str(error)[:MESSAGE_CHARACTERS]
        )
        self.folder.add_fault(fault)
        if not isinstance(error, DesktopError):
            self.failed_in_a_row += 1
            if self.failed_in_a_row == FAULTS_IN_A_ROW:
                raise error
        return fault

    def _desktops(self) -> DesktopPool:
        if self.pool is None:
            self.pool = self.stack.enter_context(own_pool(self.settings.environment))
        return self.pool


class _Progress(contextlib.AbstractContextManager["_Progress"]):
    """The progress bar: episodes, remaining time at this start's pace, success so far at the largest budget."""

    def __init__(self, budget: int):
        self._budget = budget
        self._scores: list[float] = []
        self._faults = 0
        # Without smoothing the pace is this start's mean, since recorded episodes take no time.
        self._bar = tqdm(desc="evaluate", unit="episode", smoothing=0, dynamic_ncols=True)

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def finished(self, trial: Trial, outcome: TrialOutcome, expected: int, is_new: bool) -> None:
        if isinstance(outcome, FailedTrial):
            self._faults += 1
        else:
            self._scores += [result.success for result in outcome if result.budget == self._budget]
        self._bar.total = expected
        if not is_new:
            self._bar.initial += 1
        success = f"{fmean(self._scores):.3f}" if self._scores else "-"
        self._bar.set_postfix(success=success, faults=self._faults, refresh=False)
        self._bar.update()


async def _validates(uid: str) -> bool:
    return True
