"""Play a step's episodes: all rollouts of all tasks at once, on the pool's desktops, with retries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.conversation import TokenLimits
from arpo_verl.agent.rollout.episode import Episode, play_episode
from arpo_verl.agent.rollout.scoring import Score, score_episode
from arpo_verl.desktops.pool.attempts import attempt_until_whole
from arpo_verl.desktops.pool.desktop_pool import DesktopPool, Session
from arpo_verl.easyr1.engine import TurnEngine
from arpo_verl.easyr1.images import shows_files
from arpo_verl.easyr1.settings import DoorConfig
from arpo_verl.errors import DesktopError, DesktopLostError, GenerationError
from arpo_verl.records.recorder import Recorder
from arpo_verl.reward import compute_score
from arpo_verl.types import Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Played:
    """One played rollout of a task."""

    key: str
    """Key of its row, `{group}_{session}_0`."""
    task: Task
    episode: Episode | None
    """The episode; None, like the score, if infrastructure failed it."""
    score: Score | None


class EpisodePlayer:
    """Plays tasks.

    Args:
        door: our sections of the configuration.
        pool: the job's desktops.
        chat: the policy's tokens.
        limits: limits of a row's tokens.
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
        """Play each task `rollouts` times, all at once, and return the rollouts task by task.

        Args:
            validates: whether this is a validation, which is not trained on.

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
            finally:  # an error that is not one episode's own ends all of them
                for session in sessions:
                    session.cancel()
                await asyncio.gather(*sessions, return_exceptions=True)
        if all(one.episode is None for one in played):
            raise DesktopLostError(
                f"infrastructure failed all {len(played)} episodes of step {step}; repair the desktops (the log has "
                "the reasons), then run the same command, which resumes from the last checkpoint"
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
        except (DesktopError, GenerationError) as error:
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
