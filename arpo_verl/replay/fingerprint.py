"""Compute the fingerprint of tokenizer, processor and prompt, which stored trajectories depend on. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from arpo_verl.agent.models.family import FULL
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.replay.store.persistence import Fingerprint


def model_fingerprint(
    tokenizer: Any, processor: Any, mm_processor_kwargs: Mapping[str, Any] | None, agent: GuiAgentConfig
) -> Fingerprint:
    """Return the fingerprint, from contents and not from paths or names.

    Args:
        tokenizer: a fast tokenizer. Its vocabulary, rules and chat template count, not its padding and truncation.
        processor: the settings of its image processor count, with the rollout's `mm_processor_kwargs`.
        agent: its prompt for an instruction (from family and language), the grammar of the replies, its context and
            its harness count.
    """
    vocabulary = json.loads(tokenizer.backend_tokenizer.to_str())
    for changed_by_use in ("padding", "truncation"):
        vocabulary.pop(changed_by_use, None)
    prompt: list[Any] = [processor.chat_template]
    if agent.harness is None:
        messages = agent.family.opening("INSTRUCTION", agent.language, ())
        prompt = [messages, agent.family.grammar, processor.chat_template]
    if agent.context != FULL:  # what rows show of the history: another policy's rows would teach wrong contexts
        prompt.append([agent.context, agent.row_screenshots, agent.screenshots_kept])
    if agent.harness is not None:  # it has prompts of its own, which we do not know
        prompt.append({"harness": agent.harness})
    return Fingerprint(
        tokenizer=_hash([vocabulary, tokenizer.chat_template]),
        processor=_hash([processor.image_processor.to_dict(), dict(mm_processor_kwargs or {})]),
        prompt=_hash(prompt),
    )


def _hash(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
