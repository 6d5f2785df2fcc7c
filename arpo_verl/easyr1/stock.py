"""Import every name of EasyR1 that this package uses. tests/easyr1/names.py says what each is used for.

It imports all of EasyR1, with vLLM.
"""

from __future__ import annotations

from typing import Any

from verl.protocol import DataProto, pad_dataproto_to_divisor, unpad_dataproto
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer import core_algos
from verl.trainer.config import PPOConfig
from verl.trainer.ray_trainer import RayPPOTrainer, ResourcePoolManager, Role
from verl.utils.checkpoint import CHECKPOINT_TRACKER as TRACKER
from verl.utils.logger.logger import LOGGERS
from verl.utils.tokenizer import get_processor, get_tokenizer
from verl.workers.fsdp_workers import FSDPWorker


def rope_index(processor: Any, **inputs: Any) -> Any:
    """Return EasyR1's own positions of one row, (3, T), by the function that its dataset uses for the processor."""
    if "Qwen3VL" in type(processor).__name__:
        from verl.models.transformers.qwen3_vl import get_rope_index
    else:
        from verl.models.transformers.qwen2_vl import get_rope_index
    return get_rope_index(processor, **inputs)
