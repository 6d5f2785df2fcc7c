"""List what a saved store contains, without loading it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.lib.untrusted import printable
from arpo_verl.replay.store.persistence import Manifest, read_manifest, read_records, screenshot_path
from arpo_verl.replay.store.record import read_record


@dataclass(frozen=True)
class TaskContents:
    """One task's successes. A screenshot that several tasks share counts for each of them."""

    task_id: str
    trajectories: int
    num_bytes: int
    first_step: int
    last_step: int
    mean_success: float
    mean_screenshots: float
    mean_rows: float
    with_log_probs: int


@dataclass(frozen=True)
class StoreContents:
    """A store's tasks in alphabetical order, and its totals."""

    folder: str
    manifest: Manifest
    tasks: tuple[TaskContents, ...]
    num_bytes: int
    """Bytes of the records and the screenshots, each counted once."""

    @property
    def trajectories(self) -> int:
        return sum(task.trajectories for task in self.tasks)


def inspect_store(folder: Path | str) -> StoreContents:
    """Read the records of a saved store, and only the sizes of its screenshots.

    Raises:
        ReplayError: there is no store, or it is damaged or of another version.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    lines: defaultdict[str, list[bytes]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for _, record in read_records(folder, manifest):
        lines[record.task_id].append(record.record)
        for name in record.screenshots:
            path = screenshot_path(folder, name)
            sizes[name] = path.lstat().st_size if path.exists() else 0
    tasks = tuple(_task_contents(task_id, of_task, sizes) for task_id, of_task in sorted(lines.items()))
    num_bytes = sum(sizes.values()) + sum(len(line) for of_task in lines.values() for line in of_task)
    return StoreContents(str(folder), manifest, tasks, num_bytes)


def _task_contents(task_id: str, lines: list[bytes], sizes: dict[str, int]) -> TaskContents:
    records = [read_record(line) for line in lines]
    names = {name for record in records for name in record["screenshots"]}
    return TaskContents(
        task_id=task_id,
        trajectories=len(records),
        num_bytes=sum(map(len, lines)) + sum(sizes[name] for name in names),
        first_step=min(record["step"] for record in records),
        last_step=max(record["step"] for record in records),
        mean_success=statistics.fmean(record["success"] for record in records),
        mean_screenshots=statistics.fmean(len(record["screenshots"]) for record in records),
        mean_rows=statistics.fmean(len(record.get("rows") or [None]) for record in records),
        with_log_probs=sum(record["rollout_log_probs"] is not None for record in records),
    )


def format_contents(contents: StoreContents) -> str:
    """Format the contents as a table for people."""
    manifest, newest = contents.manifest, max((task.last_step for task in contents.tasks), default=0)
    header = (
        f"{'task':40} {'stored':>6} {'MiB':>8} {'steps':>13} {'age':>5} {'success':>7} {'shots':>6} {'rows':>5} "
        f"{'log-probs':>9}"
    )
    rows = [
        f"{printable(task.task_id)[:40]:40} {task.trajectories:>6} {task.num_bytes / 2**20:>8.2f} "
        f"{f'{task.first_step}-{task.last_step}':>13} {newest - task.last_step:>5} {task.mean_success:>7.2f} "
        f"{task.mean_screenshots:>6.1f} {task.mean_rows:>5.1f} {f'{task.with_log_probs}/{task.trajectories}':>9}"
        for task in contents.tasks
    ]
    parts = "  ".join(f"{part} {value}" for part, value in vars(manifest.fingerprint).items())
    return "\n".join(
        [
            f"{contents.folder}: {contents.trajectories} successes of {len(contents.tasks)} tasks, "
            f"{contents.num_bytes / 2**20:.1f} MiB, newest of step {newest}",
            f"saved {manifest.saved_at} by {manifest.written_by}; {manifest.capacity_per_task} a task",
            f"fingerprint: {parts}",
            "",
            header,
            *rows,
        ]
    )
