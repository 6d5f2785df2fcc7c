"""`jumps.jsonl`: tasks whose success jumped to 100% within a training step, which is what reward hacking looks like.

A group is a jump where all its attempts succeed, and of at least `MIN_EARLIER` earlier attempts of its task at most the
share `MAX_EARLIER_SUCCESS` did. Learning is slower: groups in which some attempts succeed come before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo_verl.records.json_files import GrowingFile, append_objects
from arpo_verl.records.summaries import EpisodeKey

if TYPE_CHECKING:
    from arpo_verl.replay.choice import Group

logger = logging.getLogger(__name__)

_WHOLE_END = 1 << 53
"""Whole numbers are below it: a browser holds each of these exactly."""
MIN_EARLIER = 8
"""Earlier attempts: after fewer failures a group that succeeds may be chance."""
MAX_EARLIER_SUCCESS = 0.05
"""Share of the earlier attempts: one that succeeded by luck does not hide a jump after twenty."""


@dataclass(frozen=True, slots=True)
class Jump:
    """A group that all succeeded, of a task that hardly any attempt had solved."""

    task_id: str
    step: int
    """The training step of the group."""
    earlier: int
    """How many attempts of the task came before it."""
    uid: str
    session: int
    """With `uid`, the group's first attempt: the first of these successes."""

    @property
    def first(self) -> EpisodeKey:
        """The episode of that attempt, whose prompt an earlier step may have drawn."""
        return EpisodeKey(None, self.uid, self.session)


class JumpDetector:
    """Counts the attempts of each task, from its making on."""

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}
        self._solved: dict[str, int] = {}

    def find(self, step: int, groups: Iterable[Group], success_threshold: float) -> list[Jump]:
        """Count a step's groups; the jumps among them, each with a warning in the log."""
        found = []
        for group in groups:
            solved = {one.session: one.success >= success_threshold for one in group.outcomes}
            if (jump := self.attempted(step, group.task_id, group.uid, solved)) is not None:
                logger.warning(
                    "all %d attempts of task %s succeed in step %d, after %d attempts of which hardly any did: look at "
                    "one of them (arpo-verl view, Tasks × steps) for a way around the task",
                    *(len(solved), group.task_id, step, jump.earlier),
                )
                found.append(jump)
        return found

    def attempted(self, step: int, task_id: str, uid: str, solved: Mapping[int, bool]) -> Jump | None:
        """Count a group; the jump that it is, if it is one.

        Args:
            solved: by session, whether the attempt succeeded.
        """
        earlier, before = self._attempts.get(task_id, 0), self._solved.get(task_id, 0)
        self._attempts[task_id] = earlier + len(solved)
        self._solved[task_id] = before + sum(solved.values())
        if not solved or not all(solved.values()) or earlier < MIN_EARLIER or before > MAX_EARLIER_SUCCESS * earlier:
            return None
        return Jump(task_id, step, earlier, uid, min(solved))


def append_jumps(path: Path, jumps: Iterable[Jump]) -> None:
    """Append a line for each.

    Raises:
        OSError: the disk refuses.
    """
    append_objects(path, [asdict(jump) for jump in jumps])


class JumpsFile:
    """The file as it grows. Not thread-safe: its `Run` locks."""

    def __init__(self, path: Path):
        self._file = GrowingFile(path)
        self._by_task: dict[str, Jump] = {}

    def refresh(self) -> dict[str, Jump]:
        """The last jump of each task that had one."""
        for line in self._file.read_new(forget=self._by_task.clear):
            if (jump := _jump(line)) is not None:
                self._by_task[jump.task_id] = jump
        return dict(self._by_task)


def _jump(line: dict[str, Any]) -> Jump | None:
    task_id, uid = line.get("task_id"), line.get("uid")
    numbers = [line.get(name) for name in ("step", "earlier", "session")]
    step, earlier, session = (number if type(number) is int and 0 <= number < _WHOLE_END else -1 for number in numbers)
    if not isinstance(task_id, str) or not isinstance(uid, str) or min(step, earlier, session) < 0:
        return None
    return Jump(task_id, step, earlier, uid, session)
