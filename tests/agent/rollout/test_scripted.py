import asyncio

import pytest

from arpo_verl.agent.rollout.conversation import Written
from arpo_verl.agent.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.errors import ConfigError
from arpo_verl.types import Size, StopReason, Task

SCREEN = Size(640, 480)
TASK = Task("a", "Do it.", {})


def test_each_screenshot_gets_the_next_reply_until_there_is_none():
    conversation = ScriptedConversation(replies_of(["one", "two"]))
    conversation.open(TASK, SCREEN)
    assert asyncio.run(conversation.reply([])) == Written("one")
    assert conversation.show(SCREEN) is None
    assert asyncio.run(conversation.reply([])) == Written("two")
    assert conversation.show(SCREEN) is StopReason.STEP_LIMIT
    assert conversation.rows == ()


def test_a_reply_is_asked_for_with_the_screen_that_it_replies_to():
    seen = []
    conversation = ScriptedConversation(lambda screen: seen.append(screen) or "x")
    conversation.open(TASK, SCREEN)
    conversation.show(Size(320, 240))
    assert seen == [SCREEN, Size(320, 240)]


def test_coordinates_are_in_the_screen_unless_told_otherwise():
    assert ScriptedConversation(replies_of([])).image_size(SCREEN) == SCREEN
    assert ScriptedConversation(replies_of([]), Size(364, 252)).image_size(SCREEN) == Size(364, 252)


def test_an_episode_without_a_reply_is_refused():
    with pytest.raises(ConfigError, match="at least one reply, got none"):
        ScriptedConversation(replies_of([])).open(TASK, SCREEN)
