"""Make task lists of your own: choose tasks, and write a file for `data.train_files`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from arpo_verl.errors import TaskError
from arpo_verl.lib.config import did_you_mean
from arpo_verl.lib.files import write_whole
from arpo_verl.lib.untrusted import read_regular
from arpo_verl.types import Task


def of_domains(tasks: Sequence[Task], domains: Sequence[str]) -> list[Task]:
    """Return the tasks of some domains, in the order of the files.

    Raises:
        TaskError: one of them has no task.
    """
    known = {task.domain for task in tasks}
    if unknown := [domain for domain in domains if domain not in known]:
        hint = did_you_mean(unknown[0], known) or "."
        raise TaskError(f"no task has the domain {', '.join(unknown)}{hint} There are: {', '.join(sorted(known))}")
    return [task for task in tasks if task.domain in domains]


def random_subset(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """Draw `count` of the tasks, in the order of the files. A seed draws the same on all machines, in any file order.

    A larger count with the same seed contains these tasks too.

    Raises:
        TaskError: there are too few tasks.
    """
    if not 1 <= count <= len(tasks):
        raise TaskError(f"--count must be from 1 to {len(tasks)}, the number of tasks, got {count}")
    drawn = {task.task_id for task in sorted(tasks, key=lambda task: _lot(task, seed))[:count]}
    return [task for task in tasks if task.task_id in drawn]


def _lot(task: Task, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{task.task_id}".encode()).digest()


def write_list(path: Path, tasks: Sequence[Task]) -> None:
    """Write `{domain: [ids]}` to a file, which must be beside the tasks' folder `examples`.

    Raises:
        TaskError: the file would be elsewhere, or another list has its name.
        OSError: the file cannot be written.
    """
    index: dict[str, list[str]] = {}
    for task in tasks:
        index.setdefault(task.domain or "", []).append(task.task_id)
    files = [path.parent / "examples" / domain / f"{one}.json" for domain, ids in index.items() for one in ids]
    if absent := [file for file in files if not file.is_file()]:
        raise TaskError(
            f"--out must be in the folder that has the tasks' folder `examples`, as FOLDER/{path.name}; there is no "
            f"{absent[0]}"
        )
    content = json.dumps(index, indent=2).encode() + b"\n"
    if path.exists() and read_regular(path.resolve()) != content:
        raise TaskError(f"{path} exists and has other tasks, so we do not overwrite it; choose another --out")
    write_whole(path, content)


def by_domain(tasks: Sequence[Task]) -> str:
    """Describe how many tasks there are, in total and by domain."""
    counts = Counter(task.domain or "other" for task in tasks)
    return f"{len(tasks)} tasks: {', '.join(f'{domain} {count}' for domain, count in counts.items())}"
