"""The builder of a conversation's tokens that needs no veRL: token for token what veRL's makes."""

import pytest

from arpo_verl.agent.models.family import load_family
from arpo_verl.agent.models.messages import reply_message
from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.template_builder import TemplateBuilder
from arpo_verl.types import Size

SCREEN = Size(640, 480)


@pytest.fixture
def chats(policy):
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    tokenizer, processor = policy
    theirs = create_continuous_token_builder(tokenizer, hf_model_type="qwen2_5_vl", processor=processor)
    return [ChatTokenizer.from_processor(*policy, builder) for builder in (theirs, TemplateBuilder(processor))]


@pytest.mark.parametrize("earlier", [(), ("Thought: a\nAction: wait()", "Action: finished()")])
def test_an_opening_is_the_same(chats, earlier):
    messages = load_family("small").opening("Click the word apple.", "English", earlier)
    theirs, ours = (chat.prompt(messages, SCREEN) for chat in chats)
    assert ours == theirs


def test_what_follows_a_reply_is_the_same(chats):
    theirs, ours = ([chat.next_screenshot(7, SCREEN), chat.next_screenshot(chat.end_id, SCREEN)] for chat in chats)
    assert ours == theirs
    assert chats[0].next_reply(7) == chats[1].next_reply(7)


def test_a_message_behind_a_reply_is_what_the_whole_conversation_has_there(chats, policy):
    chat, messages = chats[1], load_family("small").opening("Wait.", "English", ())
    opening = chat.builder.build_initial_tokens(messages)
    reply = policy[0]("Action: wait()", add_special_tokens=False)["input_ids"]
    more = [*messages, reply_message("Action: wait()"), *messages[-1:]]
    merged = chat.builder.merge_context_tokens(more[:-1], more, [*opening, *reply, chat.end_id]).token_ids
    assert merged == chat.builder.build_initial_tokens(more)
