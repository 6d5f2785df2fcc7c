"""The content of `episode.json`, and of `live.json` while an episode is played; docs/trajectories.md lists all fields.

A struct has the fields that we read. Each has a default if an earlier version did not record it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from arpo_verl.records.json_files import Integer, Number, read_json
from arpo_verl.records.layout import EPISODE_FILE
from arpo_verl.types import Size

Place = tuple[Number, Number]


class EpisodeKey(msgspec.Struct, frozen=True):
    """The values that name an episode for the trainer. In a reference, unknown values are None."""

    step: Integer | None = None
    uid: str | None = None
    session: Integer | None = None


class RecordedAction(msgspec.Struct):
    """An action of a turn, with the fields of all kinds of action that we read."""

    action: str = ""
    point: Place | None = None
    start: Place | None = None
    end: Place | None = None
    text: str | None = None
    answer: str | None = None


class RecordedTurn(msgspec.Struct):
    """A reply of the policy."""

    text: str = ""
    thought: str = ""
    actions: list[RecordedAction] = []
    parse_error: str | None = None
    screenshot: Integer | None = None


class RecordedRow(msgspec.Struct):
    """A row of tokens, which we only count."""


class RecordedMetric(msgspec.Struct):
    """A metric that the evaluator called, see `types.MetricCall`."""

    metric: str = ""
    result: str = ""
    expected: str = ""
    returned: str = ""


class EpisodeFile(msgspec.Struct, kw_only=True):
    """An episode."""

    task_id: str
    instruction: str = ""
    step: Integer | None = None
    uid: str = ""
    session: Integer | None = None
    validation: bool | None = None
    success: Number | None = None
    reward: Number | None = None
    stop_reason: str = ""
    format_error: bool = False
    num_turns: Integer | None = None
    rows: list[RecordedRow] | None = None
    """None in an old record, which has only one row."""
    programs: list[str] = []
    started_at: Number | None = None
    wall_s: Number | None = None
    generate_s: Number | None = None
    desktop_s: Number | None = None
    image_size: Size | None = None
    evaluator: list[RecordedMetric] = []
    turns: list[RecordedTurn] = []
    screenshots: list[str] = []


def read_episode(folder: Path) -> EpisodeFile:
    """Read the `episode.json` of an episode's folder.

    Raises:
        OSError: it cannot be read.
        ValueError: it is incomplete, or a field has another type.
    """
    return read_json(folder / EPISODE_FILE, EpisodeFile)


def read_content(file: Path) -> dict[str, Any]:
    """Read an `episode.json` or a `live.json` with all its fields, also those that we do not know.

    Raises:
        OSError: it cannot be read.
        ValueError: it is incomplete, or a field has another type.
    """
    content = read_json(file, dict[str, Any])
    msgspec.convert(content, EpisodeFile)
    return content
