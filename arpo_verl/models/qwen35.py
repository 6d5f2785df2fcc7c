"""Qwen3.5, asked and read as Qwen3-VL is. OSWorld has no agent of it, so nobody has verified that it answers so."""

from __future__ import annotations

from dataclasses import replace

from arpo_verl.models import qwen3_vl

FAMILY = replace(qwen3_vl.FAMILY, model_types=("qwen3_5", "qwen3_5_moe"))
