"""Record a run's tasks and options with each checkpoint, and compare them when a run resumes.

    global_step_N/resume.json    the tasks in the order of the training rows, and the recipe's values

veRL restores weights, optimizer, the position in the order of tasks and, in asynchronous modes, the queue. It does not
check whether the recipe is still the same. This module imports neither torch nor veRL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from omegaconf import DictConfig, OmegaConf

from arpo_verl.errors import ConfigError
from arpo_verl.lib.files import write_whole
from arpo_verl.lib.untrusted import printable, read_regular
from arpo_verl.records.json_files import read_json
from arpo_verl.records.layout import LATEST_CHECKPOINT
from arpo_verl.replay.rules import task_content
from arpo_verl.types import Task
from arpo_verl.versions import __version__

if TYPE_CHECKING:
    from arpo_verl.plugin.trainer_state import ResumeConfig

RECORD_FILE = "resume.json"
STEP_FOLDER = "global_step_"

_SECTIONS = ("actor_rollout_ref", "algorithm", "data", "gui_agent", "replay", "reward", "trainer.v1")
# From sections that also contain secrets (environment.password), or options that do not affect training.
_VALUES = (
    "critic.enable",
    "environment.provider",
    "environment.num_desktops",
    "environment.screen_size",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "trainer.total_epochs",
    "trainer.total_training_steps",
)
# Places of a machine or a run, and options that veRL itself writes into the recipe.
_LEFT_OUT = (
    "actor_rollout_ref.actor.optim.total_training_steps",
    "data.gen_batch_size",
    "gui_agent.trajectory_dir",
)
_ORDER = ("data.shuffle", "data.seed", "data.dataloader_num_workers")
"""What the order of tasks, and veRL's saved state of it, depend on beside the tasks."""
_MOST_NAMED = 3
_MOST_STEP_BYTES = 100


@dataclass(frozen=True)
class ResumeRecord:
    """What a run depends on when it continues from a checkpoint."""

    tasks: tuple[str, ...]
    """Ids of the training rows, in the dataset's order. A task appears as often as an epoch draws it."""
    settings: Mapping[str, str]
    """The recipe's values as JSON text, by the full names of the options."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """What each task is, see `task_content`, by its id; empty if an earlier version saved it."""

    def order_change(self, now: ResumeRecord) -> str:
        """Return why a position in the saved order does not fit the order of `now`; empty if the orders are equal."""
        if self.tasks != now.tasks:
            return describe_tasks(self.tasks, now.tasks)
        changed = (name for name in _ORDER if self.settings.get(name) != now.settings.get(name))
        return ", ".join(f"{name} changed" for name in changed)

    def task_changes(self, now: ResumeRecord) -> str:
        """Return which tasks are others under the same id; empty if none is."""
        changed = [task for task, content in self.contents.items() if now.contents.get(task, content) != content]
        return f"another instruction, set-up or evaluator of {_named(changed)}" if changed else ""

    def changed(self, now: ResumeRecord) -> Iterator[tuple[str, str, str]]:
        """Yield option, old value and new value of each change; a value is JSON text, or `not given`."""
        for name in sorted({*self.settings, *now.settings}):
            old, new = (settings.get(name, "not given") for settings in (self.settings, now.settings))
            if old != new:
                yield name, old, new


class _Record(msgspec.Struct):
    """The file of a record."""

    format: Literal["arpo-verl resume"]
    version: Literal[1]
    tasks: tuple[str, ...]
    settings: dict[str, str]
    contents: dict[str, str] = {}  # noqa: RUF012  msgspec copies it
    written_by: str = f"arpo-verl {__version__}"


def record_of(settings: Mapping[str, str], tasks: Sequence[Task]) -> ResumeRecord:
    """Return the record of a run with these settings, whose training rows are these tasks."""
    contents = {task.task_id: task_content(task.instruction, task.spec) for task in tasks}
    return ResumeRecord(tuple(task.task_id for task in tasks), settings, contents)


def order_of(recipe: DictConfig, task_ids: Iterable[str]) -> ResumeRecord:
    """Return only the part of such a record that the order of tasks depends on."""
    return ResumeRecord(tuple(task_ids), settings_of(recipe, _ORDER))


def settings_of(recipe: DictConfig, names: Sequence[str] = (*_SECTIONS, *_VALUES)) -> dict[str, str]:
    """Return the recipe's values that a resume depends on, as JSON text by the options' full names.

    Args:
        names: sections and options.
    """
    settings: dict[str, str] = {}
    for name in names:
        node = OmegaConf.select(recipe, name, throw_on_missing=False)
        plain = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
        settings |= {option: json.dumps(value, default=str) for option, value in leaves(plain, name)}
    return {name: value for name, value in settings.items() if not _is_left_out(name)}


def references_of(recipe: DictConfig) -> tuple[str, ...]:
    """Return the recipe's options that refer to others by `${...}`, before they are resolved."""
    plain = OmegaConf.to_container(recipe, resolve=False)
    return tuple(name for name, value in leaves(plain) if isinstance(value, str) and "${" in value)


def _is_left_out(option: str) -> bool:
    return option in _LEFT_OUT or option.endswith("._target_") or ".profiler." in option


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full name and the value of each option below a recipe's section, given with the section's name."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


def describe_tasks(saved: Sequence[str], now: Sequence[str]) -> str:
    """Describe how a list of tasks differs from the saved one."""
    gone, new = (
        list(dict.fromkeys(task for task in these if task not in others))
        for these, others in ((saved, set(now)), (now, set(saved)))
    )
    parts = [f"{len(now)} rows of tasks instead of {len(saved)}"] if len(saved) != len(now) else []
    parts += [f"without {_named(gone)}"] if gone else []
    parts += [f"with {_named(new)}, not there before"] if new else []
    return ", ".join(parts) or "the same tasks in another order"


def _named(tasks: Sequence[str]) -> str:
    named = ", ".join(printable(task)[:100] for task in tasks[:_MOST_NAMED])
    return named if len(tasks) <= _MOST_NAMED else f"{named} and {len(tasks) - _MOST_NAMED} more"


# --- In a checkpoint -------------------------------------------------------------------------------------------------


def write_record(checkpoint: Path, record: ResumeRecord) -> None:
    """Write the record into a checkpoint's folder, completely or not at all.

    Raises:
        OSError: the disk refuses.
    """
    values = _Record("arpo-verl resume", 1, record.tasks, dict(record.settings), dict(record.contents))
    content = json.dumps(msgspec.to_builtins(values), indent=1)
    write_whole(checkpoint / RECORD_FILE, content.encode("ascii") + b"\n")


def read_record(checkpoint: Path) -> ResumeRecord | None:
    """Read a checkpoint's record; None if it has none, since an older version saved it or a kill came first.

    Raises:
        ConfigError: the file is not such a record; the message says what to do.
    """
    path = checkpoint / RECORD_FILE
    try:
        record = read_json(path, _Record)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} must be what arpo-verl writes beside a checkpoint: {error}; copy the checkpoint again, or remove "
            "this file: then nothing is compared, and the order of tasks begins anew"
        ) from error
    return ResumeRecord(record.tasks, record.settings, record.contents)


# --- Which checkpoint ------------------------------------------------------------------------------------------------


def resumed_checkpoint(config: ResumeConfig) -> Path | None:
    """Return the checkpoint that the trainer will resume from, found as `PPOTrainer._load_checkpoint` does it.

    Returns:
        Its folder `global_step_N`; None if the run starts at step 0.

    Raises:
        ConfigError: veRL's note of the newest checkpoint is not a number, on which veRL fails, or it names a missing
            checkpoint, where veRL would silently start at step 0.
    """
    if config.resume_mode == "auto":
        return _latest(Path(config.default_local_dir).absolute())
    if config.resume_mode == "resume_path" and config.resume_from_path:
        return Path(config.resume_from_path).absolute()
    return None


def _latest(checkpoints: Path) -> Path | None:
    note = checkpoints / LATEST_CHECKPOINT
    steps = sorted(step for step in map(step_of, checkpoints.glob(f"{STEP_FOLDER}*")) if step >= 0)
    there = f"one of {', '.join(map(str, steps))}" if steps else "there is none"
    remedy = f"write the step of an existing checkpoint into it ({there}), or set trainer.resume_mode=disable"
    try:
        step = int(read_regular(note, _MOST_STEP_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{note} must contain the step of the newest checkpoint: {error}; {remedy}") from error
    checkpoint = checkpoints / f"{STEP_FOLDER}{step}"
    if not checkpoint.is_dir():
        raise ConfigError(f"{note} must name an existing checkpoint, got {step}; {remedy}")
    return checkpoint


def step_of(checkpoint: Path) -> int:
    """Return the step of a folder `global_step_N`; -1 for any other."""
    step = checkpoint.name.removeprefix(STEP_FOLDER)
    return int(step) if step.isascii() and step.isdigit() and step != checkpoint.name else -1
