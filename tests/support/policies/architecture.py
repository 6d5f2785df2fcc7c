"""How large the small Qwen2.5-VL is, and its Hugging Face config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arpo_verl.lib.config import require

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen2_5_VLConfig

PATCH_SIZE = 14
MERGE_SIZE = 2
# Smart resize brings 640x480 below this area to 364x252: 13 x 9 = 117 visual tokens.
MAX_PIXELS = 128 * 28 * 28
MIN_PIXELS = 4 * 28 * 28


@dataclass(frozen=True)
class PolicySize:
    """Sizes of the policy's two towers. The defaults were chosen by measuring speed and what RL learns on two cores."""

    hidden_size: int = 128
    num_layers: int = 4
    num_heads: int = 4
    intermediate_size: int = 384
    vision_hidden_size: int = 64
    vision_depth: int = 2
    vision_num_heads: int = 4
    vision_intermediate_size: int = 192

    def __post_init__(self) -> None:
        for name in ("hidden_size", "vision_hidden_size"):
            heads = self.num_heads if name == "hidden_size" else self.vision_num_heads
            # A rotary half of a head is split in two or three even sections.
            require(
                getattr(self, name) % (4 * heads) == 0, name, f"a multiple of 4 x {heads} heads", getattr(self, name)
            )

    @property
    def mrope_section(self) -> list[int]:
        """Rotary pairs of a head given to time, height and width, in Qwen2.5-VL's proportion of 16:24:24."""
        pairs = self.hidden_size // self.num_heads // 2
        spatial = pairs * 3 // 8
        return [pairs - 2 * spatial, spatial, spatial]


def qwen_config(size: PolicySize, tokenizer: PreTrainedTokenizerBase) -> Qwen2_5_VLConfig:
    """Build the config of a Qwen2.5-VL of `size` over the vocabulary of `tokenizer`."""
    from transformers import Qwen2_5_VLConfig

    def token(text: str) -> int:
        token_id = tokenizer.convert_tokens_to_ids(text)
        assert isinstance(token_id, int)  # of one token
        return token_id

    return Qwen2_5_VLConfig(
        text_config=_text_config(size, len(tokenizer), token("<|endoftext|>"), token("<|im_end|>")),
        vision_config=_vision_config(size),
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
        architectures=["Qwen2_5_VLForConditionalGeneration"],
    )


def _text_config(size: PolicySize, vocab_size: int, pad_id: int, eos_id: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": size.hidden_size,
        "intermediate_size": size.intermediate_size,
        "num_hidden_layers": size.num_layers,
        "num_attention_heads": size.num_heads,
        "num_key_value_heads": size.num_heads,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        # Contexts are some hundred tokens: the base of a model with long contexts would leave most pairs unused.
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": size.mrope_section},
        # Wider than a large model's 0.02: the standard deviation goes with 1 / sqrt(hidden size).
        "initializer_range": 0.05,
        "tie_word_embeddings": True,
        "bos_token_id": pad_id,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
    }


def _vision_config(size: PolicySize) -> dict[str, Any]:
    return {
        "depth": size.vision_depth,
        "hidden_size": size.vision_hidden_size,
        "intermediate_size": size.vision_intermediate_size,
        "num_heads": size.vision_num_heads,
        "out_hidden_size": size.hidden_size,
        "patch_size": PATCH_SIZE,
        "spatial_merge_size": MERGE_SIZE,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "window_size": 112,
        # All but the last layer attend within windows, as in Qwen2.5-VL, where each fourth of 32 is a full one.
        "fullatt_block_indexes": [size.vision_depth - 1],
        "initializer_range": 0.05,
    }
