"""The dataset row that veRL hands to the agent loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from arpo_verl.errors import TaskError
from arpo_verl.types import Task


def read_task(row: Mapping[str, Any]) -> Task:
    """The row's task, from `extra_info`: `task_id`, `instruction`, and `spec`, the task file's JSON.

    Raises:
        TaskError: they are not there; says what a dataset must give.
    """
    extra_info = row.get("extra_info")
    extra_info = extra_info if isinstance(extra_info, Mapping) else {}
    missing = [name for name in ("task_id", "instruction", "spec") if name not in extra_info]
    if missing:
        raise TaskError(
            f"a dataset row must carry task_id, instruction and spec in extra_info, but {', '.join(missing)} "
            "is missing; set data.custom_cls to pkg://arpo_verl.plugin.dataset, TaskDataset"
        )
    spec = extra_info["spec"]
    if isinstance(spec, str):
        try:
            spec = json.loads(spec)
        except json.JSONDecodeError as error:
            raise TaskError(f"extra_info.spec must be the task's JSON, got text that is none: {error}") from error
    if not isinstance(spec, Mapping):
        raise TaskError(f"extra_info.spec must be the task's JSON object, got {type(spec).__name__}")
    return Task(str(extra_info["task_id"]), str(extra_info["instruction"]), spec)
