"""Qwen2.5-VL uses its `computer_use` tool, in pixels of the resized screenshot. The runner is `qwen25vl_agent.py`."""

from __future__ import annotations

from arpo_verl.agent.actions.computer_use import QWEN25
from arpo_verl.agent.models.family import OF_QWEN25
from arpo_verl.agent.models.qwen import qwen_family

FAMILY = qwen_family(
    "qwen25vl_agent.py",
    QWEN25,
    OF_QWEN25,
    heads=("action:", "step", "i will", "i'll", "now i"),
    model_types=("qwen2_5_vl",),
)
