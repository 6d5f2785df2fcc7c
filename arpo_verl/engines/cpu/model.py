"""Load the rollout's own copy of the model, which the trainer fills with weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import AutoModelForImageTextToText, PreTrainedModel
from verl.utils.model import convert_weight_keys
from verl.workers.rollout.utils import get_vision_placeholder_token_ids

from arpo_verl.engines.cpu.generation.kv_cache import ATTENTION
from arpo_verl.errors import ConfigError

if TYPE_CHECKING:
    from verl.workers.config import HFModelConfig

MODEL_TYPES = ("qwen2_vl", "qwen2_5_vl")


def load_model(model_config: HFModelConfig, *, random_weights: bool) -> PreTrainedModel:
    """Load the model in float32, with the attention of packed sequences.

    Args:
        model_config: veRL's model config.
        random_weights: do not read the weights: the trainer sends its own before the first request.

    Raises:
        ConfigError: this engine cannot run the model.
    """
    hf_config = model_config.hf_config
    if hf_config.model_type not in MODEL_TYPES:
        raise ConfigError(
            f"actor_rollout_ref.model.path must hold one of {MODEL_TYPES} for rollout.name=transformers, "
            f"got {hf_config.model_type!r}; use rollout.name=vllm"
        )
    if "sliding_attention" in hf_config.text_config.layer_types:
        raise ConfigError("rollout.name=transformers has no sliding-window attention; use rollout.name=vllm")
    attention = {"text_config": ATTENTION, "vision_config": "sdpa"}
    model: PreTrainedModel
    if random_weights:
        model = AutoModelForImageTextToText.from_config(hf_config, attn_implementation=attention, dtype=torch.float32)
    else:
        path = model_config.local_path
        assert path is not None, "veRL sets it when it makes the config"
        model = AutoModelForImageTextToText.from_pretrained(path, attn_implementation=attention, dtype=torch.float32)
    return model


def load_weights(model: PreTrainedModel, weights: Mapping[str, np.ndarray]) -> None:
    """Copy the trainer's weights into the model.

    Args:
        weights: by the names under which veRL's engine exports them.

    Raises:
        KeyError: names are missing or unknown.
    """
    parameters = convert_weight_keys(model.state_dict(), model)
    if weights.keys() != parameters.keys():
        missing, unknown = sorted(parameters.keys() - weights.keys()), sorted(weights.keys() - parameters.keys())
        raise KeyError(f"the trainer's weights must be the model's: missing {missing[:3]}, unknown {unknown[:3]}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            # This goes through numpy: arrays from Ray's object store are read-only, and torch warns of that.
            np.copyto(parameter.numpy(), weights[name])


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """Return the tensor as a float32 array in host memory."""
    return tensor.detach().to(device="cpu", dtype=torch.float32).numpy()


def eos_token_ids(model_config: HFModelConfig) -> set[int]:
    """Return the tokens that end a reply: the tokenizer's, and the generation config's if there is one."""
    eos = {model_config.tokenizer.eos_token_id}
    generation_config = model_config.generation_config
    configured = getattr(generation_config, "eos_token_id", None)
    eos.update([configured] if isinstance(configured, int) else configured or ())
    return eos


def banned_token_ids(model_config: HFModelConfig) -> list[int]:
    """Return the tokens that a reply must not hold: those that veRL's vLLM server bans (`monkey_patch_model`).

    An image or video placeholder in a reply has no image behind it and breaks the position ids of the whole sequence.
    Ids beyond the tokenizer's vocabulary, which pad the embedding table, cannot be decoded.
    """
    placeholders = get_vision_placeholder_token_ids(model_config.processor)
    padding = range(len(model_config.tokenizer), model_config.hf_config.text_config.vocab_size)
    return sorted({*placeholders, *padding})
