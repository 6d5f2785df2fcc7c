"""The store in the trainer's checkpoints: saved by its callback, restored by the sampler.

default_local_dir/global_step_N/actor/     veRL's
                                data.pt    veRL's
                                replay/    the store as it was after step N; see `persistence.py`
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from arpo_verl.replay.store.persistence import MANIFEST, Fingerprint, load_store
from arpo_verl.replay.store.success_store import SuccessStore

logger = logging.getLogger(__name__)
# As veRL's modules do it: what a run begins with belongs beside veRL's own "Resuming from ...".
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))

STORE_FOLDER = "replay"
_STEP_FOLDER = "global_step_"


@dataclass(frozen=True)
class ResumeConfig:
    """What veRL's trainer looks at when it resumes; the recipe hands the sampler the same values."""

    default_local_dir: str
    """`${trainer.default_local_dir}`."""
    resume_mode: str = "auto"
    """`${trainer.resume_mode}`."""
    resume_from_path: str | None = None
    """`${trainer.resume_from_path}`."""


class ReplayCheckpointCallback(CheckpointCallback):
    """`trainer.checkpoint_callback_class`: the store goes into every checkpoint."""

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **kwargs: Any
    ) -> None:
        """Save the sampler's store, and drop the stores of checkpoints that veRL has dropped."""
        replayer = getattr(trainer.replay_buffer, "replayer", None)
        if replayer is None or not replayer.config.enable:
            return
        folder = Path(checkpoint_dir)
        replayer.save(folder / STORE_FOLDER)
        logger.info("saved %d successes with the checkpoint of step %d", len(replayer.store), global_step)
        _remove_orphans(folder)


def resumed_checkpoint(config: ResumeConfig) -> Path | None:
    """The checkpoint that the trainer is about to resume from, found as `PPOTrainer._load_checkpoint` does it.

    Returns:
        Its folder `global_step_N`; None when the run begins at the beginning.
    """
    if config.resume_mode == "auto":
        latest = find_latest_ckpt_path(str(Path(config.default_local_dir).absolute()))
        return None if latest is None else Path(latest)
    if config.resume_mode == "resume_path" and config.resume_from_path:
        return Path(config.resume_from_path).absolute()
    return None


def restore_store(
    store: SuccessStore, resume: ResumeConfig | None, seed_from: str | None, fingerprint: Callable[[], Fingerprint]
) -> None:
    """Fill the empty `store` as it was at the resumed step, or from `replay.seed_from` at the beginning.

    A kill between veRL's own save and the callback leaves a checkpoint without a store: then the newest earlier one
    serves, so that no more is lost than one checkpoint interval.

    Args:
        fingerprint: of this run's policy; asked only where there is a store to read.

    Raises:
        ReplayError: the store is damaged, or belongs to another tokenizer, processor or prompt.
    """
    checkpoint = None if resume is None else resumed_checkpoint(resume)
    source = Path(seed_from) if seed_from else None
    if checkpoint is not None:
        source = _newest_store(checkpoint) or source
        if source is None:
            logger.warning("%s has no replay store, nor has an earlier checkpoint: the store begins empty", checkpoint)
        elif source.parent != checkpoint:
            logger.warning("%s has no replay store: taking the one in %s", checkpoint, source)
    if source is not None:
        load_store(source, fingerprint(), into=store)
        logger.info(
            "the replay store begins with %d successes of %d tasks, from %s", len(store), store.num_tasks, source
        )


def _newest_store(checkpoint: Path) -> Path | None:
    """The store of this checkpoint or of the last one before it that has one."""
    last = _step_of(checkpoint)
    steps = {_step_of(path): path for path in checkpoint.parent.glob(f"{_STEP_FOLDER}*")} | {last: checkpoint}
    for step in sorted((step for step in steps if step <= last), reverse=True):
        if (steps[step] / STORE_FOLDER / MANIFEST).is_file():
            return steps[step] / STORE_FOLDER
    return None


def _remove_orphans(kept: Path) -> None:
    """Remove the stores of other checkpoints whose weights veRL has removed (`trainer.max_actor_ckpt_to_keep`)."""
    if not (kept / "actor").is_dir():
        return  # the weights are on another machine: nothing to be seen here
    for checkpoint in kept.parent.glob(f"{_STEP_FOLDER}*"):
        if checkpoint != kept and not (checkpoint / "actor").is_dir():
            shutil.rmtree(checkpoint / STORE_FOLDER, ignore_errors=True)


def _step_of(checkpoint: Path) -> int:
    step = checkpoint.name.removeprefix(_STEP_FOLDER)
    return int(step) if step.isdigit() else -1
