"""Task lists of one's own: which of the tasks, and the file that `data.train_files` takes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from arpo_verl.config import did_you_mean
from arpo_verl.errors import TaskError
from arpo_verl.files import write_whole
from arpo_verl.types import Task
from arpo_verl.untrusted import read_regular


def of_domains(tasks: Sequence[Task], domains: Sequence[str]) -> list[Task]:
    """The tasks of some domains, in the order of the files.

    Raises:
        TaskError: no task is of one of them.
    """
    known = {task.domain for task in tasks}
    if unknown := [domain for domain in domains if domain not in known]:
        hint = did_you_mean(unknown[0], known) or "."
        raise TaskError(f"no task is of the domain {', '.join(unknown)}{hint} There are: {', '.join(sorted(known))}")
    return [task for task in tasks if task.domain in domains]


def random_subset(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """`count` of the tasks, in the order of the files: the same for the same seed, whatever the machine and the order.

    A larger count of the same seed has these tasks too.

    Raises:
        TaskError: there are fewer.
    """
    if not 1 <= count <= len(tasks):
        raise TaskError(f"--count must be from 1 to {len(tasks)}, the tasks that there are, got {count}")
    drawn = {task.task_id for task in sorted(tasks, key=lambda task: _lot(task, seed))[:count]}
    return [task for task in tasks if task.task_id in drawn]


def _lot(task: Task, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{task.task_id}".encode()).digest()


def write_list(path: Path, tasks: Sequence[Task]) -> None:
    """Write `{domain: [ids]}`, which must be beside the tasks' folder `examples`.

    Raises:
        TaskError: it would not be, or another list has that name.
        OSError: the disk refuses.
    """
    index: dict[str, list[str]] = {}
    for task in tasks:
        index.setdefault(task.domain or "", []).append(task.task_id)
    files = [path.parent / "examples" / domain / f"{one}.json" for domain, ids in index.items() for one in ids]
    if absent := [file for file in files if not file.is_file()]:
        raise TaskError(
            f"--out must be beside the folder `examples` that has the tasks, as FOLDER/{path.name}; there is no "
            f"{absent[0]}"
        )
    content = json.dumps(index, indent=2).encode() + b"\n"
    if path.exists() and read_regular(path.resolve()) != content:
        raise TaskError(f"{path} exists and has other tasks; we do not overwrite it. Give another name by --out")
    write_whole(path, content)


def by_domain(tasks: Sequence[Task]) -> str:
    """How many tasks there are, and of which domains."""
    counts = Counter(task.domain or "other" for task in tasks)
    return f"{len(tasks)} tasks: {', '.join(f'{domain} {count}' for domain, count in counts.items())}"
