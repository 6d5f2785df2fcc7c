"""Answers by an engine that takes tokens, and keeps what it sampled: what training needs."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from arpo_verl.agent.harness.chat_completions import ChatMessage, ChatRequest, ToolCall
from arpo_verl.agent.harness.policy_chat import TOO_LONG, Answer, EpisodeRequest
from arpo_verl.agent.harness.transcript import TokenReply, fits
from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import Generate, TokenLimits
from arpo_verl.agent.rollout.sequence import Generated
from arpo_verl.errors import RequestError
from arpo_verl.types import Size

logger = logging.getLogger(__name__)

ParseCalls = Callable[[list[int], Sequence[Mapping[str, Any]]], Awaitable[tuple[str, list[ToolCall]]]]
"""(a reply's tokens without its end, tools) -> its text beside the calls of tools, and these."""

TOKEN_BYTES = 32
"""Bytes of text for each token that fits: no more than a few tokens of a vocabulary are so long."""


class TokenChat:
    """A policy that is asked in tokens; see `PolicyChat`."""

    def __init__(
        self,
        generate: Generate,
        chat: ChatTokenizer,
        config: GuiAgentConfig,
        limits: TokenLimits,
        parse_calls: ParseCalls,
    ):
        self._generate = generate
        self._chat = chat
        self._config = config
        self.limits = limits
        self._parse_calls = parse_calls

    def image_size(self, screen: Size) -> Size:
        return self._chat.geometry.image_size(screen)

    def check(self, request: ChatRequest) -> None:
        """Refuse a flood: tokenizing takes a second for each megabyte, in which no other episode goes on."""
        most = TOKEN_BYTES * self.limits.most
        if request.num_bytes > most:
            raise self._too_long(f"the request has {request.num_bytes} bytes of text, more than {most}")

    def prepare(self, asked: EpisodeRequest) -> Callable[[], Awaitable[Answer]]:
        """Tokenize the request. Whole replies alone: neither a prompt nor a reply is cut short by a limit."""
        prompt_ids = self._prompt(asked)
        if not fits(self.limits, len(prompt_ids), self._config.max_reply_tokens):
            raise self._too_long(f"the prompt has {len(prompt_ids)} tokens")
        return partial(self._ask, asked, prompt_ids)

    async def _ask(self, asked: EpisodeRequest, prompt_ids: list[int]) -> Answer:
        most = asked.max_tokens
        written = await self._generate(prompt_ids, list(asked.images), most)
        log_probs = None if written.log_probs is None else written.log_probs[:most]
        said, generated, reason = await self._read(Generated(written.token_ids[:most], log_probs), asked)
        reply = TokenReply(asked.name, prompt_ids, tuple(asked.image_ids), generated, asked.earlier, said.spoken)
        is_trained = asked.request.is_trained
        return Answer(said, reason, len(prompt_ids), len(generated.token_ids), reply if is_trained else None)

    def _too_long(self, what: str) -> RequestError:
        return RequestError(
            f"{what}, and with a reply of gui_agent.max_reply_tokens={self._config.max_reply_tokens} it must fit into "
            f"{self.limits.most} tokens: in training data.max_prompt_length + data.max_response_length and "
            "rollout.max_model_len, in an evaluation --context",
            400,
            TOO_LONG,
        )

    def _prompt(self, asked: EpisodeRequest) -> list[int]:
        """Return the tokens up to the reply."""
        earlier = asked.earlier
        screens = iter([Size(*image.size) for image in asked.images][len(earlier.images) if earlier else 0 :])
        try:
            return self._tokens(earlier.token_ids if earlier else [], asked, screens)
        except Exception as error:  # a template, or a builder of veRL's, may raise what it likes
            raise RequestError(f"the policy's chat template cannot render the messages: {error!s:.500}") from error

    def _tokens(self, ids: list[int], asked: EpisodeRequest, screens: Iterator[Size]) -> list[int]:
        """Append messages to tokens. The policy's own earlier replies are the tokens that it wrote."""
        messages, tools = asked.request.messages[asked.known :], asked.request.tools
        own = _own_replies(messages, asked.replies)
        between: list[ChatMessage] = []
        for message, reply in [*zip(messages, own, strict=True), (None, None)]:
            if message is not None and reply is None:
                between.append(message)
                continue
            sizes = [next(screens) for said in between for _ in said.images]
            shown = [said.shown() for said in between]
            if not ids:
                ids = self._chat.conversation(shown, sizes, tools)
            elif shown:
                ids = ids + self._chat.following(ids[-1], shown, sizes, tools)
            else:
                ids = ids + self._chat.next_reply(ids[-1])
            ids += reply or ()
            between = []
        return ids

    async def _read(self, generated: Generated, asked: EpisodeRequest) -> tuple[ChatMessage, Generated, str]:
        """Return a reply as the client gets it, what of it was asked for, and why it ends."""
        ids, request = generated.token_ids, asked.request
        reason = "length" if len(ids) == asked.max_tokens and not self._chat.ends_turn(ids[-1]) else "stop"
        text = self._chat.text(ids)
        stop = min((text.find(stop) for stop in request.stops if stop in text), default=None)
        if stop is not None:
            reached = next(stop + len(one) for one in request.stops if text.startswith(one, stop))
            kept = _tokens_up_to(ids, reached, self._chat.text)
            log_probs = None if generated.log_probs is None else generated.log_probs[:kept]
            generated, text, reason = Generated(ids[:kept], log_probs), text[:stop], "stop"
        calls: list[ToolCall] = []
        if request.tools and stop is None:
            body = list(ids[:-1] if self._chat.ends_turn(ids[-1]) else ids)
            try:
                beside, calls = await self._parse_calls(body, request.tools)
                # Without a call it is a reply as any other: a parser leaves special tokens in, and broken calls out.
                text = beside if calls else text
            except Exception:  # of veRL's parsers, about what the policy wrote: it is a reply all the same
                logger.warning("a reply's calls of tools cannot be read; it is handed on as text", exc_info=True)
            reason = "tool_calls" if calls else reason
        return ChatMessage("assistant", text, calls or None), generated, reason


def _own_replies(messages: Sequence[ChatMessage], replies: Sequence[TokenReply]) -> list[Sequence[int] | None]:
    """Return for each message the tokens of the reply that it repeats.

    The newest message is matched with the newest reply: two may read alike and be written in other tokens.
    """
    found: list[Sequence[int] | None] = []
    newest = len(replies)
    for message in reversed(messages):
        # The policy shows no image: a turn with one is somebody else's, also where its words are the policy's.
        is_like_own = message.role == "assistant" and not message.images
        numbers = range(newest - 1, -1, -1) if is_like_own else ()
        number = next((n for n in numbers if replies[n].spoken == message.spoken), None)
        found.append(None if number is None else replies[number].generated.token_ids)
        newest = newest if number is None else number
    return found[::-1]


def _tokens_up_to(token_ids: Sequence[int], length: int, text: Callable[[Sequence[int]], str]) -> int:
    """Return how many tokens there are up to the one in which the text gets so long."""
    return 1 + bisect_left(range(1, len(token_ids)), length, key=lambda count: len(text(token_ids[:count])))
