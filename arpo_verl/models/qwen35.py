"""We treat Qwen3.5 like Qwen3-VL. OSWorld has no agent for it, so nobody has verified that it answers in this form."""

from __future__ import annotations

from dataclasses import replace

from arpo_verl.models import qwen3_vl

FAMILY = replace(qwen3_vl.FAMILY, model_types=("qwen3_5", "qwen3_5_moe"))
