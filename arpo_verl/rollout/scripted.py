"""Replies that no policy generates: from a file, a recorded episode, or typed at a prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from arpo_verl.errors import ConfigError
from arpo_verl.rollout.conversation import Written
from arpo_verl.rollout.sequence import EpisodeSequence
from arpo_verl.types import Size, StopReason, Task

NextReply = Callable[[Size], "str | None"]
"""(size of the screen that it replies to) -> the next reply, or None where there is no more."""

SEPARATOR = "---"
"""A line with nothing else ends a reply: a reply itself holds blank lines."""


class TypedConversation:
    """An agent in a Python callable.

    Args:
        next_reply: gives one reply a screenshot.
        image_size: of the image that the replies' coordinates are in; None: the screen itself.
    """

    def __init__(self, next_reply: NextReply, image_size: Size | None = None):
        self.sequence = EpisodeSequence([])
        self._next_reply = next_reply
        self._image_size = image_size
        self._next: str | None = None

    def image_size(self, screen: Size) -> Size:
        return self._image_size or screen

    def open(self, task: Task, screen: Size) -> None:
        """Take the first reply.

        Raises:
            ConfigError: there is none.
        """
        if self.show(screen) is not None:
            raise ConfigError("an episode must have at least one reply, got none")

    async def reply(self, images: list[Image.Image]) -> Written:
        assert self._next is not None
        return Written(self._next)

    def show(self, screen: Size) -> StopReason | None:
        self._next = self._next_reply(screen)
        return StopReason.STEP_LIMIT if self._next is None else None


def replies_of(texts: Iterable[str]) -> NextReply:
    """Give these texts, one after the other."""
    iterator = iter(texts)
    return lambda screen: next(iterator, None)


@dataclass(frozen=True)
class Replies:
    """Texts in order, and the size of the image that their coordinates are in, where it is known."""

    texts: tuple[str, ...]
    image_size: Size | None = None


def read_replies(path: Path) -> Replies:
    """Read replies: `---` lines between them, or those of a recorded `episode.json`.

    Raises:
        ConfigError: the file cannot be read or holds none.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--replies must be a text file of replies, got {path}: {error}") from error
    replies = _recorded(path, text) if path.suffix == ".json" else Replies(split_replies(text))
    if not replies.texts:
        raise ConfigError(f"--replies must hold at least one reply, got none in {path}")
    return replies


def split_replies(text: str) -> tuple[str, ...]:
    """The replies in a text, cut at lines that are `---`; empty ones are left out."""
    blocks = re.split(rf"^{SEPARATOR}[ \t]*$", text.replace("\r\n", "\n"), flags=re.MULTILINE)
    return tuple(block.strip() for block in blocks if block.strip())


def _recorded(path: Path, text: str) -> Replies:
    try:
        episode = json.loads(text)
        size = episode.get("image_size")
        return Replies(tuple(turn["text"] for turn in episode["turns"]), Size(*size) if size else None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--replies must be an episode.json as a run records it, or text with {SEPARATOR} lines between replies, "
            f"got {path} with {type(error).__name__}: {error}"
        ) from error
