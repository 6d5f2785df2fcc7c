"""What differs between policies that a program asks: an engine that takes tokens, or a server that takes messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from PIL import Image

from arpo_verl.agent.harness.chat_completions import ChatMessage, ChatRequest
from arpo_verl.agent.harness.transcript import TokenReply
from arpo_verl.agent.rollout.conversation import TokenLimits
from arpo_verl.types import Size

TOO_LONG = "context_length_exceeded"
"""OpenAI's code of a request that does not fit."""


@dataclass(frozen=True)
class EpisodeRequest:
    """A request that may be answered, and what the episode knows of it."""

    request: ChatRequest
    name: bytes
    """Hash of its messages."""
    max_tokens: int
    """The most tokens of the reply."""
    image_ids: Sequence[bytes]
    """The name of each image that it shows, in order."""
    images: Sequence[Image.Image] = field(repr=False)
    turn: int | None = None
    """The number of the turn that it goes on from; None where it begins a conversation."""
    known: int = 0
    """How many of its messages there are up to that turn's reply."""
    earlier: TokenReply | None = field(default=None, repr=False)
    """That reply, where it may be trained."""
    replies: Sequence[TokenReply] = field(default=(), repr=False)
    """All replies of the episode that may be trained."""


@dataclass(frozen=True)
class Answer:
    """A reply as the program gets it."""

    said: ChatMessage
    reason: str
    """OpenAI's `finish_reason`."""
    prompt_tokens: int
    reply_tokens: int
    reply: TokenReply | None = field(default=None, repr=False)
    """What of it may be trained; None where nobody trains on it."""


class PolicyChat(Protocol):
    """Answers the requests of one episode."""

    @property
    def limits(self) -> TokenLimits | None:
        """Limits of a trained row; None where nobody trains on the replies."""

    def image_size(self, screen: Size) -> Size:
        """Return the size of the image that the policy sees of a screenshot."""

    def check(self, request: ChatRequest) -> None:
        """Look at a request before its images are decoded.

        Raises:
            RequestError: its text alone is too long, code `TOO_LONG`.
        """

    def prepare(self, asked: EpisodeRequest) -> Callable[[], Awaitable[Answer]]:
        """Return what has the policy write the reply. The episode calls it once the request counts as a turn.

        Raises:
            RequestError: it cannot be answered; code `TOO_LONG` where it does not fit.
        """
