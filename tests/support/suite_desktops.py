"""Plays episodes of the shipped suites on a few real desktops at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

from arpo_verl.agent.actions.ui_tars import format_reply, parse_reply
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.tasks.expert import EXPERT_SCREEN
from arpo_verl.types import Size

POLICY_VIEW = Size(364, 252)
"""What the policy sees of the screen: the processor's resize of 640x480 within 128 * 28 * 28 pixels."""
NUM_DESKTOPS = 3


def as_the_policy_writes(replies):
    """The actions of the expert's replies as the policy learns them: through text, and coordinates of its view."""
    for reply in replies:
        text = format_reply(reply, POLICY_VIEW, EXPERT_SCREEN)
        yield from parse_reply(text, POLICY_VIEW, EXPERT_SCREEN).actions


def play_all(episodes):
    """The scores of episodes, each a task and its actions in one or more parts: a score after each part.

    An exception is a result too, for its test to raise.
    """
    mine, desktops = threading.local(), []

    def play(episode):
        from arpo_verl.desktops.osworld.environment import OSWorldEnvironment

        task, *parts = episode
        try:
            if not hasattr(mine, "desktop"):
                mine.desktop = OSWorldEnvironment(EnvironmentConfig(), threading.current_thread().name)
                desktops.append(mine.desktop)
            mine.desktop.reset(task)
            return [play_part(mine.desktop, actions) for actions in parts]
        except Exception as error:
            return error

    def play_part(desktop, actions):
        for action in actions:
            desktop.step(action)
        return desktop.evaluate().score

    try:
        with ThreadPoolExecutor(NUM_DESKTOPS, thread_name_prefix="suite") as threads:
            return list(threads.map(play, episodes))
    finally:
        for desktop in desktops:
            desktop.close()


def scores(result):
    """A result of `play_all`, raised where it is an exception."""
    if isinstance(result, Exception):
        raise result
    return result
