"""Messages as tokens: what cannot hold an image is refused, and a builder without veRL makes what veRL's makes."""

from collections import Counter

import pytest

from arpo_verl.agent.models.family import load_family
from arpo_verl.agent.models.messages import reply_message
from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import TokenConversation, TokenLimits
from arpo_verl.agent.rollout.template_builder import TemplateBuilder
from arpo_verl.errors import ConfigError
from arpo_verl.types import Size, Task

SCREEN = Size(640, 480)
SMALL = load_family("small")


@pytest.fixture
def chat(policy, model_path):
    from transformers import AutoTokenizer
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    tokenizer = AutoTokenizer.from_pretrained(model_path, extra_special_tokens=[])  # it may name few of them
    processor = policy[1]
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen2_5_vl", processor=processor)
    return ChatTokenizer.from_processor(tokenizer, processor, builder)


def test_a_tokenizer_without_vision_tokens_and_an_image_token_in_a_message_are_refused(chat, policy):
    class Plain:
        unk_token_id = 0

        def convert_tokens_to_ids(self, token):
            return 5 if token == "<|im_end|>" else 0

    with pytest.raises(ConfigError, match=r"\|image_pad\|"):
        ChatTokenizer.from_processor(Plain(), policy[1], None)
    with pytest.raises(ConfigError, match="one image placeholder, got 2"):
        chat.prompt(SMALL.opening("See <|image_pad|>", "English", ()), SCREEN)


@pytest.mark.parametrize("family", ["small", "qwen3_vl"])
def test_no_word_of_an_instruction_or_an_earlier_reply_becomes_a_special_token(chat, family):
    """Such a token closed the user's turn, or ended the run when its task was drawn."""
    marks = [token.content for token in chat.tokenizer.added_tokens_decoder.values() if token.special]
    assert "<|vision_start|>" in marks and "<|image_pad|>" in marks
    ids, marks = set(chat.tokenizer.convert_tokens_to_ids(marks)), "".join(marks)

    def prompt(instruction, reply=""):
        conversation = TokenConversation(None, chat, GuiAgentConfig(model_family=family), TokenLimits(10**5, 10**5))
        conversation.open(Task("t", instruction, {}), SCREEN)
        conversation._replies = [chat.tokenizer(reply, split_special_tokens=True)["input_ids"]]
        conversation._screens *= 2
        return [id for first in (0, 1) for id in conversation._prompt(first)]

    special = Counter(id for id in prompt("Click it.") if id in ids)
    assert special == Counter(id for id in prompt(f"Click {marks}", marks) if id in ids)
    assert chat.plain("Write <|a|>, < |im_end|> and <b>.") == "Write <|a|>, < |im_end|> and <b>."
    assert chat.plain("<|im_end|>") == "< |im_end|>"


def test_the_builder_that_needs_no_verl_makes_token_for_token_what_verls_makes(chat, policy):
    ours = ChatTokenizer.from_processor(*policy, TemplateBuilder(policy[1]))
    for earlier in ((), ("Thought: a\nAction: wait()", "Action: finished()")):
        messages = SMALL.opening("Click the word apple.", "English", earlier)
        assert ours.prompt(messages, SCREEN) == chat.prompt(messages, SCREEN)
    for last in (7, chat.end_id):
        assert ours.next_screenshot(last, SCREEN) == chat.next_screenshot(last, SCREEN)
    assert ours.next_reply(7) == chat.next_reply(7)


def test_a_message_behind_a_reply_is_what_the_whole_conversation_has_there(policy):
    builder, messages = TemplateBuilder(policy[1]), SMALL.opening("Wait.", "English", ())
    reply = policy[0]("Action: wait()", add_special_tokens=False)["input_ids"]
    (end,) = policy[0].encode("<|im_end|>")
    more = [*messages, reply_message("Action: wait()"), *messages[-1:]]
    told = [*builder.build_initial_tokens(messages), *reply, end]
    assert builder.merge_context_tokens(more[:-1], more, told).token_ids == builder.build_initial_tokens(more)
