"""The rest between the actions of one reply."""

import asyncio

import pytest
from support.fake_pool import AsyncDesktop

from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.episode import play
from arpo_verl.agent.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.desktops.fake import FakeEnvironment
from arpo_verl.lib.config import ConfigError
from arpo_verl.types import Size, Task

CLICK = "click(start_box='(300,200)')"
TASK = Task("t", "Click.", {})


class NotedDesktop(AsyncDesktop):
    def __init__(self, done):
        super().__init__(FakeEnvironment(), "noted")
        self.done = done

    async def step(self, action):
        self.done.append(type(action).__name__)
        return await super().step(action)


def played(*replies, **options):
    """What was done, in order: names of actions, and seconds of rest."""
    done = []

    async def rest(seconds):
        done.append(seconds)

    conversation = ScriptedConversation(replies_of([f"Action: {reply}" for reply in replies]), Size(640, 480))
    config = GuiAgentConfig(max_steps=len(replies), **options)
    asyncio.run(play(TASK, NotedDesktop(done), conversation, config, rest=rest))
    return done


def test_two_clicks_of_one_reply_stand_a_second_apart_and_are_no_double_click():
    assert played(f"{CLICK}\n\n{CLICK}", CLICK) == ["Click", 1.0, "Click", "Click"]


def test_nothing_rests_before_an_end_whose_desktop_gets_no_input():
    assert played(f"{CLICK}\n\nhotkey(key='a')\n\nfinished()") == ["Click", 1.0, "Hotkey", "Finish"]


def test_the_rest_is_an_option():
    assert played(f"{CLICK}\n\n{CLICK}", between_actions_s=2.5) == ["Click", 2.5, "Click"]
    with pytest.raises(ConfigError, match="gui_agent.between_actions_s must be 0 or more seconds, got -1"):
        GuiAgentConfig(between_actions_s=-1)
