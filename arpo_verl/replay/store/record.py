"""Encode a trajectory as one line of JSON, the same in memory and on disk. It contains only names of screenshots. Pure.

Columns are little-endian arrays, deflated, in base64. A 15-step trajectory at 1080p has some 40,000 token ids. Nearly
all are the image placeholder, so the deflated columns are a tenth of a single screenshot. See docs/replay.md.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import sys
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from arpo_verl.errors import ReplayError
from arpo_verl.lib.untrusted import parse_json
from arpo_verl.replay.trajectory import COLUMNS, RowSpan, StoredTrajectory, TypeCode, check_scores
from arpo_verl.types import EpisodeId

NOT_ITS_OWN = ("episode", "use")
"""Fields of a record that do not belong to the trajectory: two episodes may lead to the same one. Earlier checkouts
wrote `use`, how often a success was replayed; nothing reads it any more."""

_PLAIN_FIELDS = ("task_id", "task_content", "step", "success", "reward", "num_turns")
_COMPOSED_FIELDS = ("extra_fields", "mm_processor_kwargs")

STEPS_END = 1 << 53
"""Step numbers are below this, where floats are exact."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=STEPS_END)]
_MOST_COLUMN_BYTES = 16 << 20
"""Most bytes of an unpacked column: 4,194,304 tokens. An episode of 15 screenshots at 1080p has some 40,000."""


class _Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of a line."""

    task_id: str
    task_content: str = ""
    step: _Count
    success: float
    reward: float
    num_turns: _Count = 0
    extra_fields: dict[str, Any] = {}
    mm_processor_kwargs: dict[str, Any] | None = None
    screenshots: list[str]
    rows: list[RowSpan] = []
    prompt_ids: str
    response_ids: str
    response_mask: str
    rollout_log_probs: str | None
    episode: EpisodeId | None = None
    use: Any = None


def encode_record(trajectory: StoredTrajectory, screenshots: Sequence[str]) -> bytes:
    """Return the trajectory as JSON without a line break.

    Args:
        screenshots: the names of its screenshots in the store, in order.

    Raises:
        ReplayError: an extra field is not a plain value.
    """
    values = {name: _as_plain(trajectory, name) for name in (*_PLAIN_FIELDS, *_COMPOSED_FIELDS)}
    values["screenshots"] = list(screenshots)
    if len(trajectory.rows) > 1:
        values["rows"] = [list(span) for span in trajectory.rows]
    values["episode"] = None if trajectory.episode is None else dataclasses.asdict(trajectory.episode)
    for name in COLUMNS:
        column = getattr(trajectory, name)
        values[name] = None if column is None else _pack(column)
    return _as_line(values)


def decode_record(record: bytes, screenshot: Callable[[str], bytes]) -> StoredTrajectory:
    """Undo `encode_record`.

    Args:
        screenshot: returns a screenshot's bytes by its name.

    Raises:
        ReplayError: the record is not one of ours.
    """
    return decode_values(read_record(record), screenshot)


def decode_values(values: Mapping[str, Any], screenshot: Callable[[str], bytes]) -> StoredTrajectory:
    """Build the trajectory from the fields that `read_record` returned.

    Raises:
        ReplayError: the fields are not those of a trajectory.
    """
    fields = {name: value for name, value in values.items() if name != "use"}
    try:
        fields |= {name: read_column(values, name) for name in COLUMNS}
        _check_columns(fields)
        fields["screenshots"] = tuple(screenshot(name) for name in values["screenshots"])
        if values.get("episode") is not None:
            fields["episode"] = EpisodeId(**values["episode"])
        return StoredTrajectory(**fields)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        if isinstance(error, ReplayError):
            raise
        raise ReplayError(f"a record must have a trajectory's fields, got {sorted(values)}: {error!r:.200}") from error


def _check_columns(columns: Mapping[str, Any]) -> None:
    """Refuse values on which a trainer would only fail in the middle of a step."""
    log_probs = columns["rollout_log_probs"]
    for name, holds, expected in (
        ("prompt_ids", min(columns["prompt_ids"], default=0) >= 0, "token ids from 0"),
        ("response_ids", min(columns["response_ids"], default=0) >= 0, "token ids from 0"),
        ("response_mask", max(columns["response_mask"], default=0) <= 1, "0 and 1"),
        ("rollout_log_probs", log_probs is None or all(map(math.isfinite, log_probs)), "finite numbers"),
    ):
        if not holds:
            raise ReplayError(f"a record's {name} must be {expected}, but some are not; leave it out of the store")


def read_record(record: bytes) -> dict[str, Any]:
    """Return the record's fields, with columns still packed: enough to list what a store contains.

    Raises:
        ReplayError: it is not a JSON object; or a field is missing, unknown or of another type; or its reward or
            success is not a finite number.
    """
    try:
        values: dict[str, Any] = parse_json(record)
        msgspec.convert(values, _Record)
    except ValueError as error:
        raise ReplayError(f"a record must be one line of JSON with a trajectory's fields: {error}") from error
    check_scores(values["task_id"], values["success"], values["reward"])
    return values


def _as_line(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":"), sort_keys=True).encode("ascii")


def read_column(values: Mapping[str, Any], name: str) -> array[Any] | None:
    """Return one of the `COLUMNS` of a record from `read_record`; None if it is null."""
    packed = values[name]
    return None if packed is None else _unpack(packed, COLUMNS[name])


def _pack(column: array[Any]) -> str:
    return base64.b64encode(zlib.compress(_little_endian(column).tobytes())).decode("ascii")


def _unpack(text: str, type_code: TypeCode) -> array[Any]:
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(base64.b64decode(text, validate=True), _MOST_COLUMN_BYTES + 1)
    if len(content) > _MOST_COLUMN_BYTES or not unpacker.eof:
        raise ValueError(f"a column must be complete and unpack to at most {_MOST_COLUMN_BYTES >> 20} MiB")
    return _little_endian(array(type_code, content))


def _little_endian(column: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column


def _as_plain(trajectory: StoredTrajectory, name: str) -> Any:
    """Return a field as JSON would read it back, so that memory and disk hold the same."""
    value = getattr(trajectory, name)
    parts = value if isinstance(value, Mapping) else {"": value}
    for key, part in parts.items():
        try:
            json.dumps(part, default=_default)
        except (TypeError, ValueError) as error:
            raise ReplayError(
                f"trajectory of task {trajectory.task_id}: {name}.{key} must be a plain value that JSON can hold, got "
                f"{type(part).__name__}; have the agent loop give numbers, strings, lists or dicts of them"
            ) from error
    return json.loads(json.dumps(value, default=_default))


def _default(value: Any) -> Any:
    """Turn numpy's scalars and a recipe's containers into plain values."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(type(value).__name__)
