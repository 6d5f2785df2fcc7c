"""Say before a run starts what it resumes and how the recipe differs from the checkpoint's.

veRL compares nothing: it silently keeps the checkpoint's learning rate, and ends at once if the run is past its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from omegaconf import DictConfig

from arpo_verl.errors import ConfigError
from arpo_verl.lib.untrusted import printable
from arpo_verl.plugin.recipe.options import training_steps
from arpo_verl.plugin.resume import (
    ResumeRecord,
    read_record,
    record_of,
    references_of,
    resumed_checkpoint,
    settings_of,
    step_of,
)
from arpo_verl.plugin.trainer_state import TrainerState

_MOST_LINES = 20
_MOST_VALUE = 80
_OUR_DATASET = "pkg://arpo_verl.plugin.dataset"


def check_resume(config: DictConfig) -> None:
    """Refuse a damaged record, and a run that is past its end: it would train nothing and exit with 0. veRL itself
    refuses weights of another model, weights of another number of GPUs, and damaged ones.

    Raises:
        ConfigError: says what to do.
    """
    checkpoint = _resumed(config)
    if checkpoint is None:
        return
    read_record(checkpoint)
    steps, step = training_steps(config), step_of(checkpoint)
    if steps is not None and step > steps and not config.trainer.val_only:
        raise ConfigError(
            f"the run must end after step {step}, at which {checkpoint} was saved, but its tasks, "
            "data.train_batch_size, trainer.total_epochs and trainer.total_training_steps end it after step "
            f"{steps}; raise trainer.total_epochs, or begin a new run with its weights: arpo-verl train RECIPE "
            f"run_dir=NEW --weights-from {checkpoint}"
        )


def describe_resume(config: DictConfig) -> tuple[str, ...]:
    """Return as lines what a run resumes from, and what changed since; empty if it starts at step 0.

    Raises:
        ConfigError: veRL's note of the newest checkpoint, or the checkpoint's record, is damaged.
    """
    checkpoint = _resumed(config)
    if checkpoint is None:
        return ()
    lines = [f"  {line}" for line in _changes(checkpoint, config)]
    if training_steps(config) == step_of(checkpoint):
        lines.append("  nothing is left to train; for more steps raise trainer.total_epochs")
    left = len(lines) - _MOST_LINES
    lines = lines if left <= 0 else [*lines[:_MOST_LINES], f"  and {left} more changes"]
    if lines:
        loads_optimizer = "optimizer" in (config.actor_rollout_ref.actor.checkpoint.load_contents or ())
        kept = "weights and optimizer, with its learning rate," if loads_optimizer else "weights"
        lines.append(f"  {kept} stay the checkpoint's; everything else is as the recipe says now")
    else:
        lines = ["  nothing of the recipe has changed since"]
    return (f"goes on      after step {step_of(checkpoint)}, from {checkpoint}", *lines)


def _resumed(config: DictConfig) -> Path | None:
    """Return the checkpoint that the recipe resumes; None if it starts at step 0, or names one that does not exist."""
    checkpoint = resumed_checkpoint(TrainerState(config).resume)
    return checkpoint if checkpoint is not None and checkpoint.is_dir() else None


def _changes(checkpoint: Path, config: DictConfig) -> Iterator[str]:
    """Yield what differs from the checkpoint: the order of tasks, tasks under the same id, each option's values."""
    saved = read_record(checkpoint)
    if not (checkpoint / "data.pt").is_file():
        yield "it has no data.pt: the order of tasks begins anew"
    if saved is None:
        yield "it does not record its tasks and options: the order of tasks begins anew"
        return
    now = ResumeRecord(saved.tasks, settings_of(config))  # of another dataset than ours we know no tasks
    if config.data.custom_cls.path == _OUR_DATASET:
        from arpo_verl.plugin.dataset import training_rows  # it imports veRL

        now = record_of(now.settings, training_rows(config.data))
    if order := saved.order_change(now):
        yield f"{order}: the order of tasks begins anew"
    if tasks := saved.task_changes(now):
        yield f"{tasks}: what was solved of these tasks before is not replayed"
    references = references_of(config)
    for option, old, new in saved.changed(now):
        # The option that a reference names has a line of its own.
        if not any(option == name or option.startswith(f"{name}.") for name in references):
            before, after = _short(old), _short(new)  # long values are cut, and may look the same
            yield f"{_short(option)} {before} -> {after}" if before != after else f"{_short(option)} changed"


def _short(value: str) -> str:
    text = printable(value)
    return text if len(text) <= _MOST_VALUE else f"{text[:_MOST_VALUE]}..."
