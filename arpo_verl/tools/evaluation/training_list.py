"""Write the tasks that a filter keeps to a folder in OSWorld's layout, and why each is in it or not."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from arpo_verl.errors import ConfigError
from arpo_verl.lib.files import replacing_directory, write_whole
from arpo_verl.records.json_files import read_json
from arpo_verl.tools.evaluation.filtering import Fate, FilteredTask, Outlook, outlook
from arpo_verl.tools.evaluation.keep_rule import KeepRule
from arpo_verl.tools.evaluation.report import folder_name
from arpo_verl.tools.evaluation.task_rates import TaskRates
from arpo_verl.types import Task

LIST_FOLDER, FILTER_FILE = "training_tasks", "filter.json"


class _Fate(msgspec.Struct):
    task_id: str
    fate: str


class _Decided(msgspec.Struct):
    tasks: list[_Fate]


@dataclass(frozen=True)
class Filtered:
    """The result of a filter."""

    rule: KeepRule
    error: float
    group_size: int
    tasks: Sequence[FilteredTask]
    """All tasks, in the order of the task files."""
    rates: TaskRates = field(compare=False)

    @property
    def episodes(self) -> int:
        """The number of episodes that the policy played."""
        return sum(task.runs for task in self.tasks)

    @property
    def outlooks(self) -> dict[str, Outlook | None]:
        """The outlooks for the kept tasks and for all played ones; None without a task."""
        ids = {"list": [task.task_id for task in self.kept], "all": [task.task_id for task in self.played]}
        return {name: outlook(self.rates, one, self.group_size) if one else None for name, one in ids.items()}

    @property
    def kept(self) -> list[FilteredTask]:
        return [task for task in self.tasks if task.fate is Fate.KEPT]

    @property
    def played(self) -> list[FilteredTask]:
        return [task for task in self.tasks if task.runs]

    def __str__(self) -> str:
        full = self.rule.runs * len(self.played)
        saved = f", {1 - self.episodes / full:.0%} fewer than all runs" if full else ""
        lines = [f"{len(self.tasks)} tasks; {self.episodes} episodes played{saved}"]
        for fate, count in Counter(task.fate for task in self.tasks).most_common():
            named = [task.task_id for task in self.tasks if task.fate is fate]
            shown = f": {', '.join(named)}" if fate in _NAMED else ""
            lines.append(f"  {count:4} {fate.value}{shown}")
        doubt = sum(task.doubt for task in self.played)
        lines.append(
            f"{self.rule.runs} runs of each would probably decide {doubt:.1f} of these tasks otherwise"
            if doubt
            else f"{self.rule.runs} runs of each would give the same list: every fate is certain"
        )
        for name, seen in zip(("the list", "all played tasks"), self.outlooks.values(), strict=True):
            if seen is not None:
                lines.append(
                    f"groups of {self.group_size} on {name}, when training begins: {seen.informative:.0%} informative, "
                    f"{seen.with_replay:.0%} with replay once each task has a success stored; {seen.all_failed:.0%} "
                    f"all failed, {seen.all_solved:.0%} all solved"
                )
        return "\n".join(lines)


_NAMED = (Fate.DOING_NOTHING, Fate.NO_VERDICT, Fate.UNSETTLED)


def write_training_list(folder: Path, filtered: Filtered, tasks: Sequence[Task]) -> Path:
    """Write the kept tasks, and `filter.json` with the results, each whole or not at all.

    `data.train_files` and OSWorld's runners accept the folder `training_tasks`: `test_all.json` beside
    `examples/<domain>/<id>.json`. `list.txt` there has the ids with their counts.

    Returns:
        The folder of the list.

    Raises:
        OSError: a file cannot be written.
    """
    kept = {task.task_id: task for task in filtered.kept}
    with replacing_directory(folder / LIST_FOLDER) as scratch:
        index: dict[str, list[str]] = {}
        for task in tasks:
            if task.task_id in kept:
                domain = folder_name(task.domain or "other")
                index.setdefault(domain, []).append(task.task_id)
                file = scratch / "examples" / domain / f"{task.task_id}.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(task.spec, indent=2) + "\n", encoding="utf-8")
        (scratch / "test_all.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        lines = [f"{task.task_id}  # {task.solved} of {task.runs} runs solved it\n" for task in kept.values()]
        (scratch / "list.txt").write_text("".join(lines), encoding="utf-8")
    write_whole(folder / FILTER_FILE, json.dumps(_content(filtered), indent=1).encode() + b"\n")
    return folder / LIST_FOLDER


def kept_tasks(folder: Path) -> set[str]:
    """Return the ids of the tasks that a filter kept, from its `filter.json`.

    Raises:
        ConfigError: the file is not one of `arpo-verl filter-tasks`.
    """
    try:
        content = read_json(folder / FILTER_FILE, _Decided)
    except (OSError, ValueError) as error:
        raise ConfigError(f"what chose the tasks must be of `arpo-verl filter-tasks`, but is not: {error}") from error
    return {task.task_id for task in content.tasks if task.fate == Fate.KEPT.value}


def _content(filtered: Filtered) -> Mapping[str, Any]:
    return {
        "rule": dataclasses.asdict(filtered.rule),
        "error": filtered.error,
        "episodes": filtered.episodes,
        "counts": dict(Counter(task.fate.value for task in filtered.tasks)),
        "expected_to_differ": sum(task.doubt for task in filtered.played),
        "group_size": filtered.group_size,
        "groups": {name: one and dataclasses.asdict(one) for name, one in filtered.outlooks.items()},
        "tasks": [{**dataclasses.asdict(task), "fate": task.fate.value} for task in filtered.tasks],
    }
