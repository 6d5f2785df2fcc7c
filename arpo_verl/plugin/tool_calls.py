"""Play a run's episodes by its harness, and read tool calls in the replies with veRL's own parsers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.schemas import OpenAIFunctionToolSchema

from arpo_verl.agent.harness.chat_completions import Function, ToolCall
from arpo_verl.agent.harness.loading import load_program
from arpo_verl.agent.harness.player import HarnessEpisodes
from arpo_verl.agent.harness.token_chat import ParseCalls
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.lib.untrusted import encodable


def harness_episodes(agent: GuiAgentConfig, rollout: Any, tokenizer: Any) -> HarnessEpisodes:
    """Return what plays the episodes; `rollout` as in `tool_parser`.

    Raises:
        ConfigError: there is no such program or parser.
    """
    return HarnessEpisodes(load_program(agent), tool_parser(rollout, tokenizer))


def tool_parser(rollout: Any, tokenizer: Any) -> ParseCalls:
    """Return the parser of `rollout.multi_turn.format`.

    Args:
        rollout: veRL's section `actor_rollout_ref.rollout`.

    Raises:
        ConfigError: veRL has no such parser.
    """
    name = (rollout.get("multi_turn") or {}).get("format") or "hermes"
    try:
        parser = ToolParser.get_tool_parser(name, tokenizer)
    except ValueError as error:
        option = "actor_rollout_ref.rollout.multi_turn.format"
        raise ConfigError(f"{option} must name one of veRL's tool parsers, got {name!r}") from error

    async def parse_calls(token_ids: list[int], tools: Sequence[Mapping[str, Any]]) -> tuple[str, list[ToolCall]]:
        text, calls = await parser.extract_tool_calls(token_ids, list(_schemas(tools)))
        # A reply may hold half of a character as an escape, which the parsers unescape.
        return text, [ToolCall(Function(encodable(call.name), encodable(call.arguments))) for call in calls]

    return parse_calls


def _schemas(tools: Sequence[Mapping[str, Any]]) -> Iterator[OpenAIFunctionToolSchema]:
    """Yield the tools that have veRL's form, which some parsers need to read an argument as a number."""
    for tool in tools:
        with suppress(ValueError):
            yield OpenAIFunctionToolSchema.model_validate(tool)
