"""Messages as tokens: what cannot hold an image is refused."""

import pytest

from arpo_verl.errors import ConfigError
from arpo_verl.models.family import load_family
from arpo_verl.rollout.chat import ChatTokenizer
from arpo_verl.types import Size


def test_a_tokenizer_without_vision_tokens_is_refused(policy):
    class Plain:
        unk_token_id = 0

        def convert_tokens_to_ids(self, token):
            return 5 if token == "<|im_end|>" else 0

    with pytest.raises(ConfigError, match=r"\|image_pad\|"):
        ChatTokenizer.from_processor(Plain(), policy[1], None)


def test_an_image_token_in_an_instruction_is_refused(policy):
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    tokenizer, processor = policy
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen2_5_vl", processor=processor)
    chat = ChatTokenizer.from_processor(tokenizer, processor, builder)
    with pytest.raises(ConfigError, match="one image placeholder, got 2"):
        chat.prompt(load_family("small").opening("See <|image_pad|>", "English", ()), Size(640, 480))
