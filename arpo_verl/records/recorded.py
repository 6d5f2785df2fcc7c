"""Reads recorded episodes from disk."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image

from arpo_verl.agent.rollout.sequence import Generated
from arpo_verl.agent.rollout.vision import decode_screenshot
from arpo_verl.errors import ReplayError
from arpo_verl.lib.images import MAX_BYTES
from arpo_verl.lib.untrusted import read_regular
from arpo_verl.records.json_files import Count, Number, read_json
from arpo_verl.records.layout import EPISODE_FILE, HIDDEN, TOKENS_FILE, is_screenshot
from arpo_verl.types import Size

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordedEpisode:
    """From this we can make an episode's tokens again."""

    source: str
    """Where we read it, for messages."""
    task_id: str
    instruction: str
    success: float
    reward: float
    stop_reason: str
    screenshots: tuple[bytes, ...] = field(repr=False)
    """The screenshots; empty if they are not on disk, because of `gui_agent.record` or the budget."""
    replies: tuple[str, ...]
    """The text of each reply, without special tokens."""
    tokens: tuple[Generated, ...] = field(default=(), repr=False)
    """The tokens of each reply, if they were recorded."""
    image_size: Size | None = None
    """The size of the images that the replies' coordinates are in, if known."""
    num_tokens: tuple[int, int] | None = None
    """The numbers of prompt and response tokens, if they were recorded."""
    format_error: bool = False
    validation: bool = False
    task_content: str = ""
    """See `replay/rules.py: task_content`; empty if an earlier version recorded it."""
    reward_extra_info: dict[str, Any] = field(default_factory=dict)
    requests: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """Of each reply, what a harness asked; none where not each has one."""

    def images(self) -> list[Image.Image]:
        """Return the screenshots as a policy sees them, one before each reply.

        Raises:
            ReplayError: there are none, or their number differs from the replies'.
        """
        if not self.screenshots or len(self.screenshots) != len(self.replies):
            raise ReplayError(
                "an episode must have one screenshot before each reply, but "
                f"{self.source} has {len(self.screenshots)} screenshots and {len(self.replies)} replies"
            )
        return [decode_screenshot(screenshot) for screenshot in self.screenshots]


def read_episodes(source: Path | str) -> Iterator[RecordedEpisode]:
    """Yield all episodes of a run's trajectory folder, in the order of training.

    Raises:
        ReplayError: there are none, or one cannot be read.
    """
    source = Path(source)
    try:
        yield from _read_folder(source)
    except (OSError, ValueError) as error:
        if isinstance(error, ReplayError):
            raise
        raise ReplayError(f"cannot read the episodes in {source}: {type(error).__name__}: {error}") from error


def _read_folder(folder: Path) -> Iterator[RecordedEpisode]:
    # Sorted by `step_000012/<task>__<uid>_<session>`: the order of training, the same on every machine.
    # Hidden folders are unfinished episodes of a killed run.
    folders = sorted(path.parent for path in folder.rglob(EPISODE_FILE) if not path.parent.name.startswith(HIDDEN))
    if not folders:
        raise ReplayError(
            f"{folder} has no recorded episodes (no {EPISODE_FILE} in it); record them with gui_agent.trajectory_dir"
        )
    yield from map(_read_recorded, folders)


class _Turn(msgspec.Struct):
    text: str
    request: dict[str, Any] | None = None


class _Reply(msgspec.Struct):
    token_ids: tuple[int, ...]
    log_probs: tuple[Number | None, ...] | None


class _Content(msgspec.Struct, kw_only=True):
    """What tokens are made from in `episode.json`."""

    task_id: str
    instruction: str
    task_content: str = ""
    success: Number
    reward: Number
    reward_extra_info: dict[str, Any]
    stop_reason: str
    format_error: bool
    validation: bool | None
    image_size: Size | None = None
    prompt_tokens: Count
    response_tokens: Count
    turns: list[_Turn]
    screenshots: list[str]


def _read_recorded(folder: Path) -> RecordedEpisode:
    content = read_json(folder / EPISODE_FILE, _Content)
    requests = tuple(turn.request for turn in content.turns if turn.request)
    names = ("task_id", "instruction", "task_content", "success", "reward", "reward_extra_info", "stop_reason")
    return RecordedEpisode(
        source=str(folder),
        **{name: getattr(content, name) for name in (*names, "format_error", "image_size")},
        screenshots=_screenshots(folder, content.screenshots),
        replies=tuple(turn.text for turn in content.turns),
        tokens=_tokens(folder / TOKENS_FILE),
        num_tokens=(content.prompt_tokens, content.response_tokens),
        validation=content.validation is True,
        requests=requests if len(requests) == len(content.turns) else (),
    )


def _tokens(file: Path) -> tuple[Generated, ...]:
    """Return the replies' tokens, if there is such a file; without any log-probs if one of them is NaN or infinite."""
    replies = read_json(file, list[_Reply]) if file.exists() else []
    if is_odd := any(None in (reply.log_probs or ()) for reply in replies):
        logger.warning("%s has a log-prob that is no finite number: its episode is read without log-probs", file)

    def finite(log_probs: tuple[Number | None, ...] | None) -> tuple[float, ...] | None:
        return None if is_odd or log_probs is None else tuple(one for one in log_probs if one is not None)

    return tuple(Generated(reply.token_ids, finite(reply.log_probs)) for reply in replies)


def _screenshots(folder: Path, names: list[str]) -> tuple[bytes, ...]:
    if strange := [name for name in names if not is_screenshot(name)]:
        raise ValueError(f"{folder / EPISODE_FILE} names {strange[0]!r:.80}, which is no NN.png, NN.jpg or NN.webp")
    paths = [folder / name for name in names]
    return tuple(read_regular(path, MAX_BYTES) for path in paths) if all(path.exists() for path in paths) else ()
