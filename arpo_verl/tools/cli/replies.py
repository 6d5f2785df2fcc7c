"""This gets the replies of an episode: from a file (text, or a recorded episode's), or typed at a prompt."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from arpo_verl.agent.models.family import ModelFamily
from arpo_verl.errors import ActionError, ConfigError
from arpo_verl.lib.untrusted import MOST_JSON_BYTES, parse_json, read_text
from arpo_verl.records.episode_file import EpisodeFile
from arpo_verl.types import Size

SEPARATOR = "---"
"""A line with only this ends a reply, since a reply itself may have blank lines."""


@dataclass(frozen=True)
class Replies:
    """These are texts in order, and the size of the image that their coordinates are in, if known."""

    texts: tuple[str, ...]
    image_size: Size | None = None


def read_replies(path: Path) -> Replies:
    """Read replies with `---` lines between them, or those of a recorded `episode.json`.

    Raises:
        ConfigError: the file cannot be read, or has no replies.
    """
    try:
        text = read_text(path, MOST_JSON_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--replies must be a text file of replies, got {path}: {error}") from error
    replies = _recorded(path, text) if path.suffix == ".json" else Replies(split_replies(text))
    if not replies.texts:
        raise ConfigError(f"--replies must hold at least one reply, got none in {path}")
    return replies


def split_replies(text: str) -> tuple[str, ...]:
    """Split a text into replies at lines that are `---`, without empty ones."""
    blocks = re.split(rf"^{SEPARATOR}[ \t]*$", text.replace("\r\n", "\n"), flags=re.MULTILINE)
    return tuple(block.strip() for block in blocks if block.strip())


def _recorded(path: Path, text: str) -> Replies:
    try:
        episode = msgspec.convert(parse_json(text), EpisodeFile)
        return Replies(tuple(turn.text for turn in episode.turns), episode.image_size)
    except ValueError as error:
        raise ConfigError(
            f"--replies must be an episode.json as a run records it, or text with {SEPARATOR} lines between replies, "
            f"got {path}: {error}"
        ) from error


class PromptedReplies:
    """This asks for a reply to each screenshot, again if it is malformed, which would end a policy's episode."""

    def __init__(self, family: ModelFamily, image_size: Size | None, say: Callable[[str], None]):
        self._family = family
        self._image_size = image_size
        self._say = say
        self._count = 0

    def __call__(self, screen: Size) -> str | None:
        self._count += 1
        while True:
            self._say(f"reply {self._count}; end it with a line of {SEPARATOR}, or the episode with Ctrl-D:")
            text = _read_block()
            if text is None:
                return None
            try:
                self._family.read(text, self._image_size or screen, screen)
                return text
            except ActionError as error:
                self._say(f"  malformed; this would end a policy's episode: {error}")


def _read_block() -> str | None:
    """Read lines up to `---` or the end of input; None if the input ended before any text."""
    lines: list[str] = []
    while True:
        try:
            line = input()
        except EOFError:
            return "\n".join(lines).strip() or None
        if line.rstrip() == SEPARATOR:
            return "\n".join(lines).strip()
        lines.append(line)
