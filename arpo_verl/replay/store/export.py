"""Write a saved store for people: a folder for each trajectory, with its text, its screenshots and its numbers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from arpo_verl.replay.store.persistence import read_manifest, read_records, read_screenshot
from arpo_verl.replay.store.record import decode_record
from arpo_verl.replay.store.screenshots import as_png
from arpo_verl.replay.store.success_store import StoredRecord
from arpo_verl.replay.trajectory import COLUMNS, StoredTrajectory

_LONG_RUN = 16
"""Equal tokens in a row from which they are counted. No reply has so many; even the smallest screenshot does."""

Decode = Callable[[Sequence[int]], str]
"""Token ids -> text, special tokens included."""


def export_store(folder: Path, out: Path, decode: Decode | None = None) -> int:
    """Write `out/<task>/step_<step>_<serial>/` for every trajectory; return how many.

    Args:
        decode: decodes with the policy's tokenizer; None writes no text.

    Raises:
        ReplayError: there is no store, or it is damaged.
        OSError: the disk refuses.
    """
    count = 0
    for serial, record in list(read_records(folder, read_manifest(folder))):  # reads all first: it may be damaged
        trajectory = decode_record(record.record, lambda name: read_screenshot(folder, name))
        task = re.sub(r"[^\w.-]", "_", trajectory.task_id, flags=re.ASCII)[:80].lstrip(".") or "_"
        target = out / task / f"step_{trajectory.step:06d}_{serial}"
        target.mkdir(parents=True, exist_ok=True)
        _export_trajectory(target, trajectory, record, decode)
        count += 1
    return count


def _export_trajectory(folder: Path, trajectory: StoredTrajectory, record: StoredRecord, decode: Decode | None) -> None:
    names = [f"{index:02d}.png" for index in range(len(trajectory.screenshots))]
    for name, screenshot in zip(names, trajectory.screenshots, strict=True):
        (folder / name).write_bytes(as_png(screenshot))
    values = {
        "task_id": trajectory.task_id,
        "step": trajectory.step,
        "success": trajectory.success,
        "reward": trajectory.reward,
        "num_turns": trajectory.num_turns,
        "prompt_tokens": len(trajectory.prompt_ids),
        "response_tokens": len(trajectory.response_ids),
        "reply_tokens": sum(trajectory.response_mask),
        "has_log_probs": trajectory.rollout_log_probs is not None,
        "extra_fields": dict(trajectory.extra_fields),
        "rows": [row._asdict() for row in trajectory.rows],
        "mm_processor_kwargs": trajectory.mm_processor_kwargs,
        "screenshots": names,
        "stored_as": list(record.screenshots),
    }
    (folder / "trajectory.json").write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    tokens = {name: None if (column := getattr(trajectory, name)) is None else column.tolist() for name in COLUMNS}
    (folder / "tokens.json").write_text(json.dumps(tokens) + "\n", encoding="utf-8")
    if decode is not None:
        rows = [_readable([*row.prompt_ids, *row.response_ids], decode) for row in trajectory.each_row()]
        (folder / "text.txt").write_text("\n\n".join(rows) + "\n", encoding="utf-8", errors="replace")


def _readable(token_ids: Sequence[int], decode: Decode) -> str:
    """Return the text, with the thousand placeholders of a screenshot as one, with their number."""
    runs = [(token_id, len(list(run))) for token_id, run in itertools.groupby(token_ids)]
    parts: list[str] = []
    pending: list[int] = []  # decoded together: a character may take several tokens
    for token_id, count in runs:
        if count < _LONG_RUN:
            pending += [token_id] * count
            continue
        parts += [decode(pending), f"{decode([token_id])} x {count}"]
        pending = []
    return "".join([*parts, decode(pending)])
