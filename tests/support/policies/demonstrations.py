"""Demonstrations: the scripted expert plays the tasks on real desktops; its episodes are recorded, for imitation."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import arpo_verl
from arpo_verl.agent.actions.reply import Reply
from arpo_verl.agent.actions.ui_tars import format_reply
from arpo_verl.agent.rollout.episode import Episode
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.threaded import ThreadedDesktop
from arpo_verl.lib.files import replacing_directory
from arpo_verl.tools.cli.by_hand import record_episode
from arpo_verl.types import Size, Task


def collect_demonstrations(
    tasks: Sequence[Task],
    expert: Callable[[str], Sequence[Reply]],
    environment: EnvironmentConfig,
    image_size: Callable[[Size], Size],
) -> list[Episode]:
    """Have the expert play each task, on `environment.num_desktops` desktops at once.

    Args:
        expert: the replies that solve a task, by its id, with points in pixels of the screen.
        image_size: from a screenshot's size to that of the image which the policy sees.
    """
    image, free = image_size(environment.screen_size), queue.SimpleQueue[ThreadedDesktop]()

    def play(task: Task) -> Episode:
        # Parsed back when played: what counts is where the policy's coarser coordinates click.
        texts = [format_reply(reply, image, environment.screen_size) for reply in expert(task.task_id)]
        desktop = free.get()

        def say(instruction: str, screenshots: object, replies: list[str]) -> str:
            return texts[len(replies)]

        try:
            for _ in range(environment.max_attempts):  # a busy machine may draw a window later than the script clicks
                episode = arpo_verl.play(task, desktop, say, max_steps=len(texts), image_size=image)
                if episode.success == 1.0:
                    return episode
        finally:
            free.put(desktop)
        raise AssertionError(f"the expert's script does not solve {task.task_id}")

    with ExitStack() as desktops, ThreadPoolExecutor(environment.num_desktops) as threads:
        for number in range(environment.num_desktops):
            free.put(desktops.enter_context(ThreadedDesktop(environment, f"demonstration-{number}")))
        return list(threads.map(play, tasks))


def save_demonstrations(folder: Path, episodes: Sequence[Episode]) -> None:
    """Write `folder` as a folder of recorded episodes, whole or not at all."""
    with replacing_directory(folder) as scratch:
        for number, episode in enumerate(episodes):
            record_episode(scratch, episode, uid="expert", session=number)
