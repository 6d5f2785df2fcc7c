"""Makes a checkpoint a policy on a CPU, with our rollout engine in this process, in tokens as in training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from PIL import Image

from arpo_verl.agent.harness.policy_chat import PolicyChat
from arpo_verl.agent.harness.token_chat import TokenChat
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import Conversation, Generate, TokenConversation, TokenLimits
from arpo_verl.agent.rollout.sequence import Generated
from arpo_verl.engines.cpu.lone import load_engine
from arpo_verl.errors import GenerationError
from arpo_verl.plugin.settings import chat_tokenizer
from arpo_verl.plugin.tool_calls import tool_parser
from arpo_verl.tools.evaluation.policy import Sampling, reply_seed
from arpo_verl.tools.evaluation.results import Trial


class OwnEngine:
    """Loads a model's folder.

    Args:
        facts: what identifies the model.
        pixels: `min_pixels` and `max_pixels` of a screenshot for the processor; None takes its own.
        context: most tokens of a sequence; None takes the model's number of positions.
        tool_format: veRL's parser of tool calls, for a harness that offers tools.

    Raises:
        ConfigError: the engine cannot run the model.
    """

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        pixels: Mapping[str, int] | None,
        context: int | None = None,
        tool_format: str | None = None,
    ):
        self._engine = load_engine(folder)
        self._kwargs = dict(pixels or {})
        engine = self._engine
        self._chat = chat_tokenizer(engine.tokenizer, engine.processor, engine.model_type, self._kwargs)
        length = min(context or engine.context, engine.context)
        self._limits = TokenLimits(length, length, length)
        self._tool_format = tool_format
        self._facts = {**facts, "engine": "transformers", "context": length, **vars(self._chat.geometry)}
        self._facts |= {} if tool_format is None else {"tool_format": tool_format}

    @property
    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def conversation(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> Conversation:
        """See `Policy`."""
        return TokenConversation(self._generate(sampling, trial), self._chat, config, self._limits)

    def chat(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> PolicyChat:
        """See `Policy`.

        Raises:
            ConfigError: veRL has no such parser of calls of tools.
        """
        parse_calls = tool_parser({"multi_turn": {"format": self._tool_format}}, self._engine.tokenizer)
        return TokenChat(self._generate(sampling, trial), self._chat, config, self._limits, parse_calls)

    def _generate(self, sampling: Sampling, trial: Trial) -> Generate:
        written = 0

        async def generate(prompt_ids: list[int], images: list[Image.Image], max_tokens: int) -> Generated:
            nonlocal written
            params = {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": max_tokens,
                "seed": reply_seed(sampling, trial, written),
            }
            written += 1
            output = await self._engine.server.generate(
                prompt_ids, params, uuid4().hex, image_data=images, mm_processor_kwargs=self._kwargs
            )
            if not output.token_ids:
                raise GenerationError(f"the engine gave no reply ({output.stop_reason})")
            return Generated(tuple(output.token_ids), tuple(output.log_probs or ()) or None)

        return generate
