"""We ask Qwen3.5 as Qwen3-VL, and read its calls as JSON or in its own template's tags. OSWorld has no agent for it, so
nobody has verified that it acts well when asked so."""

from __future__ import annotations

from dataclasses import replace

from arpo_verl.agent.models import qwen3_vl

FAMILY = replace(qwen3_vl.FAMILY, model_types=("qwen3_5", "qwen3_5_moe"))
