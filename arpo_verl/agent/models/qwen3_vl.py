"""Qwen3-VL uses its `computer_use` tool, in thousandths of the screenshot's sides. The runner is `qwen3vl_agent.py`."""

from __future__ import annotations

from arpo_verl.agent.actions.computer_use import QWEN3
from arpo_verl.agent.models.family import ImageLimits
from arpo_verl.agent.models.qwen import qwen_family

FAMILY = qwen_family(
    "qwen3vl_agent.py",
    QWEN3,
    ImageLimits(32, 64 * 32 * 32, 16384 * 32 * 32),
    heads=("action:",),
    model_types=("qwen3_vl", "qwen3_vl_moe"),
)
