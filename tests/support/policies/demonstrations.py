"""Demonstrations: the scripted expert plays the tasks on real desktops; its episodes are recorded, for imitation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

from tqdm import tqdm

from arpo_verl.actions.reply import Reply
from arpo_verl.actions.ui_tars import format_reply
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.threaded import ThreadedDesktop
from arpo_verl.errors import DesktopError, TaskError
from arpo_verl.files import replacing_directory
from arpo_verl.records.recorder import record_episode
from arpo_verl.rollout.blocking import BlockingDesktop, play_blocking, run_blocking
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.episode import Episode
from arpo_verl.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.types import Size, Task

logger = logging.getLogger(__name__)

ExpertFor = Callable[[str], Sequence[Reply]]
Job = tuple[int, Task]


def collect_demonstrations(
    tasks: Sequence[Task],
    expert: ExpertFor,
    environment: EnvironmentConfig,
    image_size: Callable[[Size], Size],
) -> list[Episode]:
    """Have the expert play each task, on `environment.num_desktops` desktops at once.

    Args:
        tasks: what to play.
        expert: the replies that solve a task, by its id, with points in pixels of the screen.
        environment: which desktops; the pauses should be those of the rollouts, so that the policy sees the same.
        image_size: from a screenshot's size to that of the image which the policy sees.

    Returns:
        Solved episodes, in the order of `tasks`.

    Raises:
        TaskError: an expert's script does not solve its task.
        DesktopError: `environment.max_attempts` desktops failed at one demonstration.
    """
    screen = environment.screen_size
    jobs = enumerate(tasks)
    done: dict[int, Episode] = {}

    async def play_job(job: Job, desktop: BlockingDesktop) -> None:
        number, task = job
        play = partial(play_expert, task, expert(task.task_id), desktop, image_size(screen), screen)
        done[number] = await asyncio.get_running_loop().run_in_executor(threads, play)
        progress.update()

    async def play_all() -> None:
        slots = [
            asyncio.create_task(_play_in_slot(slot, jobs, play_job, environment))
            for slot in range(environment.num_desktops)
        ]
        try:
            await asyncio.gather(*slots)
        finally:
            for slot in slots:
                slot.cancel()
            await asyncio.gather(*slots, return_exceptions=True)

    with (
        ThreadPoolExecutor(environment.num_desktops) as threads,
        tqdm(total=len(tasks), desc="demonstrations", unit="episode") as progress,
    ):
        run_blocking(play_all())
    return [done[number] for number in range(len(tasks))]


async def _play_in_slot(
    slot: int,
    jobs: Iterator[Job],
    play_job: Callable[[Job, BlockingDesktop], Awaitable[None]],
    environment: EnvironmentConfig,
) -> None:
    """Play one job after the other on one desktop, and a failed one again on a fresh one."""
    job, failures = next(jobs, None), 0
    for generation in count(1):
        with ThreadedDesktop(environment, f"demonstration-{slot}.{generation}") as desktop:
            try:
                while job is not None:
                    task_id = job[1].task_id
                    await play_job(job, desktop)
                    job, failures = next(jobs, None), 0
                return
            except (DesktopError, TaskError) as error:
                # A busy machine may draw a window later than the script clicks it: that too deserves a second try.
                failures += 1
                logger.warning("demonstration of %s, attempt %d: %s", task_id, failures, error)
                if failures == environment.max_attempts:
                    raise


def play_expert(task: Task, replies: Sequence[Reply], desktop: BlockingDesktop, image: Size, screen: Size) -> Episode:
    """Play one task to its end by the script, through the text that the policy will write.

    Raises:
        TaskError: the evaluator's score is not 1.
        DesktopError: the desktop failed.
    """
    # Parsed back when played: what counts is where the policy's coarser coordinates click.
    texts = [format_reply(reply, image, screen) for reply in replies]
    config = GuiAgentConfig(max_steps=len(texts), max_screenshots=None)
    episode = play_blocking(task, desktop, ScriptedConversation(replies_of(texts), image), config)
    if episode.success != 1.0:
        raise TaskError(f"the expert's script must solve task {task.task_id} with score 1, got {episode.success:g}")
    return episode


def save_demonstrations(folder: Path, episodes: Sequence[Episode]) -> None:
    """Write `folder` as a folder of recorded episodes, whole or not at all."""
    with replacing_directory(folder) as scratch:
        for number, episode in enumerate(episodes):
            record_episode(scratch, episode, uid="expert", session=number)
