"""Run the rollout engine without a trainer: with a model's own weights, in the caller's process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl.workers.config import HFModelConfig, RolloutConfig

from arpo_verl.engines.cpu.options import NAME
from arpo_verl.engines.cpu.server import TransformersServer


@dataclass(frozen=True)
class LoneEngine:
    """A rollout server without a trainer, with the parts of its model that a conversation needs."""

    server: TransformersServer
    tokenizer: Any
    processor: Any
    model_type: str
    context: int
    """Longest sequence that the model has positions for, in tokens."""


def load_engine(folder: Path) -> LoneEngine:
    """Load the model in `folder` with its weights.

    Raises:
        ConfigError: this engine cannot run the model.
    """
    model = HFModelConfig(path=str(folder), override_config={"attn_implementation": "sdpa"})
    context = int(model.hf_config.text_config.max_position_embeddings)
    rollout = RolloutConfig(
        name=NAME,
        dtype="float32",
        load_format="auto",
        tensor_model_parallel_size=1,
        prompt_length=context,
        response_length=context,
        max_model_len=context,
    )
    server = TransformersServer(rollout, model, replica_rank=0)
    return LoneEngine(server, model.tokenizer, model.processor, model.hf_config.model_type, context)
