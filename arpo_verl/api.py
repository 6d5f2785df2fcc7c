"""Beside a training run: desktops and episodes from Python, without a trainer.

import arpo_verl

task = arpo_verl.load_tasks("embedded")[0]
with arpo_verl.make_desktop("embedded") as desktop:
    episode = arpo_verl.play(task, desktop, policy)
print(episode.success, episode.stop_reason)
"""

from __future__ import annotations

from typing import Any

from arpo_verl.agent.rollout.blocking import PolicyConversation, PolicyFunction, play_blocking
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.episode import Episode
from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.desktops.config import EMBEDDED, EnvironmentConfig
from arpo_verl.desktops.threaded import ThreadedDesktop
from arpo_verl.lib.config import build_config, require
from arpo_verl.types import Size, Task


def make_desktop(provider: str = EMBEDDED, **options: Any) -> ThreadedDesktop:
    """Make a desktop of your own. Use it as a context manager, which closes it.

    You can also call `desktop.reset(task)`, `desktop.step(action)` and `desktop.evaluate()` yourself.

    Args:
        provider: `embedded`, a provider of OSWorld's client (`docker`, `vmware`, ...), `fake`, or
            `package.module:name`.
        options: other fields of `EnvironmentConfig`, such as `screen_size=(1280, 720)`.

    Raises:
        ConfigError: the provider or an option does not exist, or a value is wrong.
        MissingDependencyError: a package or program is missing. The first use raises it.
    """
    return ThreadedDesktop(build_config(EnvironmentConfig, "environment", {"provider": provider, **options}))


def play(
    task: Task,
    desktop: DesktopEnvironment,
    policy: PolicyFunction,
    *,
    max_steps: int = 15,
    model_family: str = "ui_tars_15",
    image_size: tuple[int, int] | None = None,
) -> Episode:
    """Let `policy` play `task` to its end and evaluate it, with the code that plays a training run's episodes.

    Args:
        policy: (instruction, screenshots so far, replies so far) -> the next reply, as a model of the family writes it.
            The screenshots are PIL images, the newest last.
        max_steps: most replies.
        model_family: family whose grammar the replies are in, as in `gui_agent.model_family`.
        image_size: width and height of the image that the replies' coordinates refer to, if the policy saw resized
            screenshots; None: the screen's.

    Returns:
        The episode: `success` (the evaluator's score, from 0 to 1), `stop_reason`, `turns`, `screenshots`, times. A
        reply outside its grammar ends the episode, with `stop_reason` `parse_error`.

    Raises:
        DesktopError: the desktop failed; nothing of the episode counts.
        ConfigError: an option is wrong, or the policy did not return text.
    """
    require(callable(policy), "policy", "a function that returns the next reply", policy)
    config = GuiAgentConfig(max_steps=max_steps, max_screenshots=None, model_family=model_family)
    if image_size is not None:
        sides = image_size if isinstance(image_size, (tuple, list)) else ()
        ok = len(sides) == 2 and all(type(side) is int and side > 0 for side in sides)
        require(ok, "image_size", "(width, height) in pixels", image_size)
        image_size = Size(*image_size)
    return play_blocking(task, desktop, PolicyConversation(policy, image_size), config)
