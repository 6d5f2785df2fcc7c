"""Recorded episodes of a harness as rows of tokens: its requests are asked anew, and answered by what was recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from arpo_verl.agent.harness.chat_completions import png_url, write_content
from arpo_verl.agent.harness.client import HarnessClient
from arpo_verl.agent.harness.token_chat import ParseCalls, TokenChat
from arpo_verl.agent.harness.transcript import chains, lay_out, sequences, trained
from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import TokenLimits
from arpo_verl.agent.rollout.episode import decode_in_thread
from arpo_verl.agent.rollout.sequence import EpisodeSequence, Generated
from arpo_verl.errors import GenerationError, ReplayError, RequestError
from arpo_verl.records.recorded import RecordedEpisode
from arpo_verl.types import StopReason


@dataclass(frozen=True)
class RecordedRows:
    """What training would have stored of an episode."""

    rows: tuple[EpisodeSequence, ...]
    screenshots: tuple[bytes, ...]
    """The screenshots that the rows number."""


@dataclass(frozen=True)
class HarnessRecords:
    """Makes rows of records, for one policy.

    Args:
        parse_calls: of the recipe, which reads calls of tools in a reply.
    """

    chat: ChatTokenizer
    config: GuiAgentConfig
    limits: TokenLimits
    parse_calls: ParseCalls

    def rows(self, episode: RecordedEpisode) -> RecordedRows:
        """Return the episode's rows, of the tokens that were recorded.

        Raises:
            ReplayError: the record is none of a harness's, or was made with another tokenizer, chat template or size of
                screenshots than the run's.
        """
        try:
            made = asyncio.run(self._ask_again(episode, self._replies(episode)))
        except (GenerationError, RequestError) as error:
            raise ReplayError(f"the run must take the harness's requests: {error}") from error
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise ReplayError(f"a harness's requests must be recorded whole, got {what}") from error
        lengths = [(len(row.prompt_ids), len(row.response_ids)) for row in made.rows]
        if (now := tuple(map(sum, zip(*lengths, strict=True)))) != episode.num_tokens:
            raise ReplayError(
                f"the run must show a harness's requests in as many tokens as were recorded, got {now} instead of "
                f"{episode.num_tokens}; take the same chat template and data.mm_processor_kwargs"
            )
        return made

    async def _ask_again(self, episode: RecordedEpisode, replies: Sequence[Generated]) -> RecordedRows:
        remaining = iter(replies)

        async def generate(prompt_ids: list[int], images: list[Image.Image], max_tokens: int) -> Generated:
            reply = next(remaining)
            if len(reply.token_ids) > max_tokens or not self.chat.placeholder_ids.isdisjoint(reply.token_ids):
                raise GenerationError(f"a reply must have at most {max_tokens} tokens, and none of an image's")
            return reply

        ended: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        asked = TokenChat(generate, self.chat, self.config, self.limits, self.parse_calls)
        client = HarnessClient(asked, self.config, decode_in_thread, ended)
        conversations: list[list[Any]] = []
        try:
            for request in episode.requests:
                earlier = conversations[request["after_turn"]] if request["after_messages"] else []
                if len(earlier) != request["after_messages"]:
                    raise ReplayError(f"turn {request['after_turn']} must have {request['after_messages']} messages")
                messages = [*earlier, *_fill(request["messages"], episode.screenshots)]
                answer = await client.complete({**request, "messages": messages})
                conversations.append([*messages, answer["choices"][0]["message"]])
        finally:
            if ended.done():
                ended.exception()  # its reason was raised
        if not client.replies or len(client.replies) != len(replies):
            raise ReplayError("each turn of an episode must have a reply that may be trained")
        for request, turn, text in zip(episode.requests, client.turns, episode.replies, strict=True):
            if request["row"] is not None and turn.text != text:
                raise ReplayError(
                    "a harness's replies must be recorded in tokens of this run's tokenizer and tool parser"
                )
        rows = chains(trained(client.replies), self.limits)
        order, stretches = lay_out([row[-1].images for row in rows])
        return RecordedRows(sequences(rows, stretches), tuple(client.files[name] for name in order))

    def _replies(self, episode: RecordedEpisode) -> list[Generated]:
        """Return what was written in each turn.

        Tokens are recorded row by row, of turns that a row trains; a rewritten history may repeat what others wrote.
        """
        turns = [number for number, request in enumerate(episode.requests) if request["row"] is not None]
        by_row = sorted(turns, key=lambda turn: episode.requests[turn]["row"])
        if len(by_row) != len(episode.tokens):
            raise ReplayError(f"each of {len(by_row)} trained turns must have its tokens, got {len(episode.tokens)}")
        tokens = dict(zip(by_row, episode.tokens, strict=True))
        return [tokens.get(number) or self._tokenized(text) for number, text in enumerate(episode.replies)]

    def _tokenized(self, text: str) -> Generated:
        return Generated((*self.chat.tokenizer.encode(text, add_special_tokens=False), self.chat.end_id), None)


def _fill(messages: Sequence[Mapping[str, Any]], screenshots: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    """Yield messages with their images."""
    for message in messages:
        shown = [screenshots[part["screenshot"]] for part in message["content"] if part["type"] == "image"]
        yield {**message, "content": write_content(message["content"], map(png_url, shown))}
