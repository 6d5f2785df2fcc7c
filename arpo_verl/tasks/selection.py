"""The recipe's section `data.tasks:` chooses the loaded tasks to train on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from arpo_verl.errors import TaskError
from arpo_verl.lib.config import build_config, check_fields, did_you_mean, one_of, require, truth, whole
from arpo_verl.tasks.frontier import FrontierConfig
from arpo_verl.tasks.loader import TaskPath, load_tasks
from arpo_verl.types import Task

UNIFORM, FRONTIER = SAMPLINGS = ("uniform", "frontier")


@dataclass(frozen=True)
class TaskSelection:
    """Options that choose tasks of `data.train_files` and `data.val_files`."""

    ids: Sequence[str] | None = None
    """Ids of the tasks to use, as in a curriculum or a filtered training set; None: all."""
    repeat: Annotated[int, whole(1, "1 or more")] = 1
    """How often a training epoch draws each task, to fill a batch with more groups than tasks. Validation draws each
    once."""
    skip_missing: Annotated[bool, truth()] = False
    """Leave out tasks that an index names but that have no file."""
    skip_unusable: Annotated[bool, truth()] = False
    """Leave out tasks that are malformed or that the installed OSWorld client cannot evaluate."""
    sampling: Annotated[str, one_of(SAMPLINGS)] = UNIFORM
    """How training draws the next task. `uniform`: in veRL's own order, random or as in the files (`data.shuffle`).
    `frontier`: by how likely a group of it is to teach anything, see `tasks/frontier.py`. Validation plays all."""
    frontier: Mapping[str, Any] = field(default_factory=dict)
    """Options of `sampling: frontier`, see `FrontierConfig`."""

    def __post_init__(self) -> None:
        check_fields(self, "data.tasks")
        build_config(FrontierConfig, "data.tasks.frontier", self.frontier)
        if self.ids is not None:
            ok = not isinstance(self.ids, str) and all(isinstance(i, str) for i in self.ids) and len(self.ids) > 0
            require(ok, "data.tasks.ids", "a list of at least one task id, or null", self.ids)
            object.__setattr__(self, "ids", tuple(self.ids))


def load_selected_tasks(path: TaskPath | Iterable[TaskPath], selection: TaskSelection) -> list[Task]:
    """Load the tasks of a recipe's selection, in the order of the files, each once.

    Raises:
        TaskError: as `load_tasks`, and for a selected id that no file has.
    """
    tasks = load_tasks(path, skip_missing=selection.skip_missing, skip_unusable=selection.skip_unusable)
    if selection.ids is None:
        return tasks
    known, wanted = {task.task_id for task in tasks}, set(selection.ids)
    if unknown := [i for i in selection.ids if i not in known]:
        hint = did_you_mean(unknown[0], sorted(known))
        raise TaskError(f"data.tasks.ids names {', '.join(unknown)}, which {path} lacks{hint}")
    return [task for task in tasks if task.task_id in wanted]
