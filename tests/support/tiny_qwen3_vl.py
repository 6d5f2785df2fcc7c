"""A tiny Qwen3-VL with tokenizer and processor, made here: patches of 16 pixels, a template of its own kind."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import (
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from arpo_verl.agent.models.qwen import words
from support.policies.build import corpus_tokenizer

# Unlike Qwen2.5-VL's, it adds no system message of its own.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' or 'image' in part %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Text to the model's decoder, though each is one token.
PLAIN_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")


def build_qwen3_vl(folder: Path) -> Path:
    """Write the model and its processor into `folder`, in Hugging Face's format."""
    tokenizer = corpus_tokenizer([*words("qwen3vl_agent.py", "")] * 2)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN_TOKENS])
    tokenizer.chat_template = CHAT_TEMPLATE
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad")}
    ids |= {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("vision_start", "vision_end")}
    patches = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
            "pad_token_id": tokenizer.pad_token_id,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 32,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0],
        },
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        architectures=["Qwen3VLForConditionalGeneration"],
    )

    def limits() -> dict[str, int]:
        return {"shortest_edge": 4 * 32 * 32, "longest_edge": 128 * 32 * 32}

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3VLForConditionalGeneration(config).save_pretrained(folder)
    Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=limits(), **patches),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(size=limits(), **patches),
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
