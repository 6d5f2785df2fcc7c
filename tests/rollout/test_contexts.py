"""Rows of a window and of segments, with the real tokenizer: what each shows, and what gives way for want of room."""

import asyncio

import pytest
from PIL import Image

from arpo_verl.rollout.chat import ChatTokenizer
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.conversation import TokenConversation, TokenLimits
from arpo_verl.rollout.sequence import Generated
from arpo_verl.types import Size, StopReason, Task

SCREEN = Size(640, 480)


@pytest.fixture
def chat(policy):
    pytest.importorskip("verl")
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    tokenizer, processor = policy
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen2_5_vl", processor=processor)
    return ChatTokenizer.from_processor(tokenizer, processor, builder)


def play(chat, config, limits, replies):
    """An episode of these replies; returns the conversation and why it ended before the last one."""
    written = iter(replies)

    async def generate(prompt_ids, images, max_tokens):
        ids = chat.tokenizer.encode(next(written), add_special_tokens=False)
        return Generated((*ids, chat.end_id), None)

    conversation = TokenConversation(generate, chat, config, limits)
    conversation.open(Task("t", "Do it.", {}), SCREEN)
    images = [Image.new("RGB", SCREEN)]
    for number in range(len(replies)):
        asyncio.run(conversation.reply(images))
        if number + 1 < len(replies) and (ended := conversation.show(SCREEN)) is not None:
            return conversation, ended
        images.append(images[0])
    return conversation, None


def shown(conversation):
    return [list(row.screenshots) for row in conversation.rows]


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ({"context": "window", "max_screenshots": 3}, [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]),
        ({"context": "segments", "max_screenshots": 4, "kept_screenshots": 2}, [[0, 1, 2, 3], [3, 4, 5, 6]]),
        ({"context": "segments", "max_screenshots": 3}, [[0, 1, 2], [2, 3, 4], [4, 5, 6]]),
        ({"context": "full"}, [[0, 1, 2, 3, 4, 5, 6]]),
    ],
)
def test_what_each_row_shows_and_how_many_there_are(chat, values, rows):
    config = GuiAgentConfig(max_steps=7, max_reply_tokens=64, prompt="compact", **values)
    conversation, ended = play(chat, config, TokenLimits(1000, 4000), [f"Action: wait() {n}" for n in range(7)])
    assert ended is None and shown(conversation) == rows and len(rows) == config.max_rows


def test_the_oldest_screenshots_give_way_to_replies_and_the_newest_never(chat):
    config = GuiAgentConfig(max_steps=30, max_reply_tokens=64, prompt="compact", context="window", max_screenshots=3)
    replies = [f"Thought: {'a b c d e f g h ' * 3}Action: wait() {n}" for n in range(30)]
    roomy, ended = play(chat, config, TokenLimits(1000, 9000), replies)
    assert ended is None and all(len(row) == 3 for row in shown(roomy)[1:])
    longest = max(len(row.token_ids) for row in roomy.rows)
    conversation, ended = play(chat, config, TokenLimits(500, longest - 900), replies)
    counts = [len(row) for row in shown(conversation)]
    assert counts[1:] == sorted(counts[1:], reverse=True) and {1, 2, 3} <= set(counts)
    assert ended is StopReason.TOKEN_LIMIT and counts[-1] == 1
    assert all(len(row.token_ids) <= longest - 400 for row in conversation.rows)
    # Each reply is generated once, and stays in every later row.
    assert sum(map(sum, (row.response_mask for row in conversation.rows))) == sum(
        len(chat.tokenizer.encode(reply)) + 1 for reply in replies[: shown(conversation)[-1][-1] + 1]
    )
