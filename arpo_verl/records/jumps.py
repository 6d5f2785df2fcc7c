"""`jumps.jsonl` has tasks whose success jumped to 100% within a training step, a sign of reward hacking.

A group is a jump if all its attempts succeed, and if of at least `MIN_EARLIER` earlier attempts of its task at most the
share `MAX_EARLIER_SUCCESS` did. Learning is slower: it has groups first in which some attempts succeed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arpo_verl.records.episode_file import EpisodeKey
from arpo_verl.records.json_files import Count, append_objects

if TYPE_CHECKING:
    from arpo_verl.replay.groups import Group

logger = logging.getLogger(__name__)

MIN_EARLIER = 8
"""Least number of earlier attempts: after fewer failures a successful group may be chance."""
MAX_EARLIER_SUCCESS = 0.05
"""Largest share of earlier successes: one lucky success does not hide a jump after twenty attempts."""


@dataclass(frozen=True, slots=True)
class Jump:
    """A group whose attempts all succeeded, of a task that hardly any earlier attempt had solved."""

    task_id: str
    step: Count
    """The training step of the group."""
    earlier: Count
    """The number of earlier attempts of the task."""
    uid: str
    session: Count
    """The session of the group's first attempt; with `uid` it names the first of these successes."""

    @property
    def first(self) -> EpisodeKey:
        """Return that attempt's episode, whose prompt an earlier step may have drawn."""
        return EpisodeKey(None, self.uid, self.session)


class JumpDetector:
    """Counts the attempts of each task."""

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}
        self._solved: dict[str, int] = {}

    def find(self, step: int, groups: Iterable[Group], success_threshold: float) -> list[Jump]:
        """Count a step's groups; return the jumps among them, and log a warning for each."""
        found = []
        for group in groups:
            solved = {one.session: one.success >= success_threshold for one in group.outcomes}
            if (jump := self.attempted(step, group.task_id, group.uid, solved)) is not None:
                logger.warning(
                    "all %d attempts of task %s succeed in step %d, but hardly any of %d earlier attempts did; look at "
                    "one of them (arpo-verl view, Tasks × steps) for a trick that avoids the task",
                    *(len(solved), group.task_id, step, jump.earlier),
                )
                found.append(jump)
        return found

    def attempted(self, step: int, task_id: str, uid: str, solved: Mapping[int, bool]) -> Jump | None:
        """Count a group, and return it if it is a jump.

        Args:
            solved: whether each attempt succeeded, by session.
        """
        earlier, before = self._attempts.get(task_id, 0), self._solved.get(task_id, 0)
        self._attempts[task_id] = earlier + len(solved)
        self._solved[task_id] = before + sum(solved.values())
        if not solved or not all(solved.values()) or earlier < MIN_EARLIER or before > MAX_EARLIER_SUCCESS * earlier:
            return None
        return Jump(task_id, step, earlier, uid, min(solved))


def append_jumps(path: Path, jumps: Iterable[Jump]) -> None:
    """Append a line for each jump.

    Raises:
        OSError: the file cannot be written.
    """
    append_objects(path, [asdict(jump) for jump in jumps])
