"""A step's episodes: every rollout of every task at once, each on a desktop of the pool, retried where one fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from arpo_verl.easyr1.engine import TurnEngine
from arpo_verl.easyr1.images import shows_files
from arpo_verl.easyr1.settings import DoorConfig
from arpo_verl.errors import DesktopError, DesktopLostError, GenerationError, TaskQuarantinedError
from arpo_verl.pool.attempts import attempt_until_whole
from arpo_verl.pool.desktop_pool import DesktopPool, Session
from arpo_verl.records.recorder import Recorder
from arpo_verl.reward import compute_score
from arpo_verl.rollout.chat import ChatTokenizer
from arpo_verl.rollout.conversation import TokenLimits
from arpo_verl.rollout.episode import Episode, play_episode
from arpo_verl.rollout.scoring import Score, score_episode
from arpo_verl.types import Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Played:
    """One rollout of a task."""

    key: str
    """`{group}_{session}_0`."""
    task: Task
    episode: Episode | None
    """None where infrastructure failed it: then there is no score either."""
    score: Score | None


class EpisodePlayer:
    """Plays tasks.

    Args:
        door: our sections.
        pool: the job's desktops.
        chat: the policy's tokens.
        limits: of a row's tokens.
    """

    def __init__(self, door: DoorConfig, pool: DesktopPool, chat: ChatTokenizer, limits: TokenLimits) -> None:
        self._door = door
        self._pool = pool
        self._chat = chat
        self._limits = limits
        self._validates = False
        self._recorder = Recorder(door.agent, self._is_validation)

    async def play(
        self, tasks: Sequence[Task], rollouts: int, step: int, engine: TurnEngine, validates: bool = False
    ) -> list[Played]:
        """Play each task so many times, all at once; returns them task by task.

        Args:
            validates: whether nothing of it is trained on.

        Raises:
            DesktopLostError: infrastructure failed every episode.
            ConfigError: the configuration or the reward function is wrong.
        """
        self._validates = validates
        groups = [(task, uuid4().hex) for task in tasks]
        async with engine.running():
            sessions = [
                asyncio.create_task(self._session(task, uid, number, step, engine))
                for task, uid in groups
                for number in range(rollouts)
            ]
            try:
                played = await asyncio.gather(*sessions)
            finally:  # what ends one for a reason that is everybody's ends all
                for session in sessions:
                    session.cancel()
                await asyncio.gather(*sessions, return_exceptions=True)
        if all(one.episode is None for one in played):
            raise DesktopLostError(
                f"step {step} must have at least one episode, but infrastructure failed all {len(played)} of them; "
                "mend the desktops (the log says why); the same command resumes from the last checkpoint"
            )
        return played

    async def _is_validation(self, uid: str) -> bool:
        return self._validates

    async def _session(self, task: Task, uid: str, number: int, step: int, engine: TurnEngine) -> Played:
        key = f"{uid}_{number}_0"
        row = {
            "uid": uid,
            "session_id": number,
            "global_steps": step,
            "data_source": "arpo_verl",
            "reward_model": {"ground_truth": task.task_id},
            "extra_info": {"task_id": task.task_id, "instruction": task.instruction},
        }

        async def attempt(session: Session, unclear_losses: int) -> tuple[Episode, Score]:
            return await self._attempt(task, row, session, unclear_losses, engine)

        try:
            episode, score = await attempt_until_whole(
                self._pool, self._door.environment, task.task_id, attempt, batch=step
            )
        except (DesktopError, TaskQuarantinedError, GenerationError) as error:
            logger.warning("rollout %d of task %s is dropped: %s", number, task.task_id, error)
            await self._pool.report_drop(task.task_id)
            return Played(key, task, None, None)
        return Played(key, task, episode, score)

    async def _attempt(
        self, task: Task, row: dict[str, Any], session: Session, unclear_losses: int, engine: TurnEngine
    ) -> tuple[Episode, Score]:
        async with self._recorder.episode(row, task) as writer:
            async with session.lease() as desktop:
                writer.begin(f"{desktop.name} on {desktop.host}")
                agent, decode = self._door.agent, shows_files(self._chat.geometry)
                episode = await play_episode(
                    task, desktop, engine.generate, self._chat, agent, self._limits, writer, decode
                )
            solution = self._chat.text([id for own in episode.rows for id in own.response_ids])
            credit = 0.0 if self._validates or episode.share is None else self._door.environment.partial_credit
            score = await score_episode(compute_score, episode, solution, row, unclear_losses, credit)
            await writer.finish(episode, score)
        return episode, score
