"""Episodes of a script: the rest between the actions of one reply, and a reply for each screen until none is left."""

import asyncio

import pytest
from support.fake_pool import AsyncDesktop

from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import Written
from arpo_verl.agent.rollout.episode import play
from arpo_verl.agent.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.desktops.fake import FakeEnvironment
from arpo_verl.lib.config import ConfigError
from arpo_verl.types import Size, StopReason, Task

CLICK = "click(start_box='(300,200)')"
TASK = Task("t", "Click.", {})
SCREEN = Size(640, 480)


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

    conversation = ScriptedConversation(replies_of([f"Action: {reply}" for reply in replies]), SCREEN)
    config = GuiAgentConfig(max_steps=len(replies), **options)
    asyncio.run(play(TASK, NotedDesktop(done), conversation, config, rest=rest))
    return done


@pytest.mark.parametrize(
    ("replies", "options", "done"),
    [
        ([f"{CLICK}\n\n{CLICK}", CLICK], {}, ["Click", 1.0, "Click", "Click"]),
        ([f"{CLICK}\n\nhotkey(key='a')\n\nfinished()"], {}, ["Click", 1.0, "Hotkey", "Finish"]),
        ([f"{CLICK}\n\n{CLICK}"], {"between_actions_s": 2.5}, ["Click", 2.5, "Click"]),
    ],
    ids=["no double click", "no input, no rest", "an option"],
)
def test_actions_of_one_reply_rest_between(replies, options, done):
    assert played(*replies, **options) == done


def test_each_screenshot_gets_the_next_reply_until_there_is_none():
    seen, replies = [], iter(["one", "two", None])
    conversation = ScriptedConversation(lambda screen: seen.append(screen) or next(replies))
    conversation.open(TASK, SCREEN)
    assert asyncio.run(conversation.reply([])) == Written("one")
    assert conversation.show(Size(320, 240)) is None
    assert asyncio.run(conversation.reply([])) == Written("two")
    assert conversation.show(SCREEN) is StopReason.STEP_LIMIT
    assert seen == [SCREEN, Size(320, 240), SCREEN] and conversation.rows == ()
    assert conversation.image_size(SCREEN) == SCREEN
    assert ScriptedConversation(replies_of([]), Size(364, 252)).image_size(SCREEN) == Size(364, 252)
    with pytest.raises(ConfigError, match="at least one reply, got none"):
        ScriptedConversation(replies_of([])).open(TASK, SCREEN)
