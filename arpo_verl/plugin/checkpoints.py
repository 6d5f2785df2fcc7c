"""Add our part to the trainer's checkpoints. Its callback saves it, and the sampler restores the store.

default_local_dir/global_step_N/actor/     veRL's
                                data.pt    veRL's
                                transfer_queue/    veRL's, in asynchronous modes
                                resume.json    the tasks and options of the run; see `resume.py`
                                replay/    the store after step N; see `persistence.py`
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from arpo_verl.plugin.resume import (
    STEP_FOLDER,
    record_of,
    resumed_checkpoint,
    settings_of,
    step_of,
    write_record,
)
from arpo_verl.plugin.trainer_state import ResumeConfig
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.store import restoring
from arpo_verl.replay.store.persistence import Fingerprint
from arpo_verl.replay.store.restoring import fill_store
from arpo_verl.replay.store.success_store import SuccessStore

logger = logging.getLogger(__name__)
# Log at veRL's level: what a run starts with belongs beside veRL's own "Resuming from ...".
for name in (__name__, restoring.__name__):
    logging.getLogger(name).setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))

STORE_FOLDER = "replay"
REQUEST_FILE = "save-now"
POLL_S = 2.0
_QUEUE_FOLDER = "transfer_queue"
"""veRL writes it in asynchronous modes. TransferQueue writes `.tmp` beside it and moves an older one to `.old`."""


class SaveRequest:
    """Saves a checkpoint on request, for example before a node is taken away.

    veRL's V1 trainer saves only by `trainer.save_freq`. It does not handle SIGTERM, on which Ray ends the driver at
    once. So you ask with a file, `touch RUN_DIR/checkpoints/save-now`: the trainer finishes its step and saves.

    Args:
        config: the trainer's own config; it reads `trainer.save_freq` after every step.
        poll_s: seconds between two looks for the file.
    """

    def __init__(self, config: Any, poll_s: float = POLL_S):
        self._trainer = config.trainer
        self._file = Path(config.trainer.default_local_dir) / REQUEST_FILE
        self._save_freq = config.trainer.save_freq
        self._ended = threading.Event()
        self._file.unlink(missing_ok=True)  # left by an earlier start
        threading.Thread(target=self._watch, args=(poll_s,), name="arpo_verl-save-request", daemon=True).start()

    def _watch(self, poll_s: float) -> None:
        while not self._ended.wait(poll_s):
            if self._trainer.save_freq != 1 and self._file.exists():
                logger.info("%s is there: a checkpoint follows at the end of this step", self._file)
                self._trainer.save_freq = 1

    def saved(self) -> None:
        """Note that a checkpoint is complete, so the request is done."""
        self._file.unlink(missing_ok=True)
        # Reset it each time. If the watch sees the file and sets 1 only after this, one more checkpoint follows.
        self._trainer.save_freq = self._save_freq

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()


class ReplayCheckpointCallback(CheckpointCallback):
    """`trainer.checkpoint_callback_class`: puts store and record into every checkpoint, saves one on request, and keeps
    at most `trainer.max_actor_ckpt_to_keep` over all starts of a run."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)  # type: ignore[no-untyped-call]
        self._request = None if config is None else SaveRequest(config)
        # The recipe as it is at the start: veRL changes it later.
        self._settings = {} if config is None else settings_of(config)

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **kwargs: Any
    ) -> None:
        """Save the record and the sampler's store, and remove what veRL leaves of old checkpoints."""
        folder = Path(checkpoint_dir)
        tasks = getattr(getattr(trainer, "train_dataset", None), "tasks", ())  # other datasets have none
        write_record(folder, record_of(self._settings, tasks))
        replayer = getattr(trainer.replay_buffer, "replayer", None)
        if replayer is not None and replayer.config.enable:
            replayer.save(folder / STORE_FOLDER)
            logger.info("saved %d successes with the checkpoint of step %d", len(replayer.store), global_step)
        if self.config is not None:
            _remove_surplus(folder, self.config.trainer)
        _remove_orphans(folder)
        if self._request is not None:
            self._request.saved()


def restore_store(
    store: SuccessStore, resume: ResumeConfig, replay: ReplayConfig, fingerprint: Callable[[], Fingerprint]
) -> None:
    """Fill the empty `store` as it was at the resumed step, or from `replay.seed_from` at step 0.

    A kill between veRL's save and the callback leaves a checkpoint without a store. Then the newest earlier store is
    used, so that at most one checkpoint interval is lost.

    Args:
        fingerprint: computes this run's fingerprint; called only if there is a store to read.

    Raises:
        ReplayError: the seeds of a new run, or with `refuse` a resumed run's store, are damaged or belong to another
            tokenizer, processor or prompt.
    """
    checkpoint = resumed_checkpoint(resume)
    steps: dict[int, Path] = {}
    if checkpoint is not None:
        last = step_of(checkpoint)
        found = {step_of(path): path for path in checkpoint.parent.glob(f"{STEP_FOLDER}*")} | {last: checkpoint}
        steps = {step: path for step, path in found.items() if step <= last}
    fill_store(store, [steps[step] / STORE_FOLDER for step in sorted(steps, reverse=True)], replay, fingerprint)


def _remove_surplus(kept: Path, trainer: Mapping[str, Any]) -> None:
    """Remove the weights of older checkpoints beyond the number that the recipe keeps, also of earlier starts.

    veRL's workers count only the checkpoints of their own start (0.9.1, `checkpoint_manager.py:
    BaseCheckpointManager.register_checkpoint`). Checkpoints of later steps stay: they belong to another branch.

    Args:
        kept: the checkpoint that was just saved.
        trainer: the recipe's section `trainer`.
    """
    for part in ("actor", "critic"):
        most = 1 if trainer.get("remove_previous_ckpt_in_save") else trainer.get(f"max_{part}_ckpt_to_keep")
        if not most or most < 1 or not (kept / part).is_dir():  # no limit, or the weights are on another machine
            continue
        older = [other for other in kept.parent.glob(f"{STEP_FOLDER}*") if 0 <= step_of(other) < step_of(kept)]
        older = sorted((other for other in older if (other / part).is_dir()), key=step_of, reverse=True)
        for other in older[most - 1 :]:
            logger.info("removed %s: the recipe keeps %d", other / part, most)
            shutil.rmtree(other / part, ignore_errors=True)


def _remove_orphans(kept: Path) -> None:
    """Remove what nobody can resume from. If veRL removed the weights of a checkpoint
    (`trainer.max_actor_ckpt_to_keep`), its store and its queue go, which veRL would keep forever. So do unfinished
    queues that a kill left. A queue is as large as its batches: up to a hundred gigabytes at 1080p.
    """
    if not (kept / "actor").is_dir():
        return  # the weights are on another machine, so we cannot see which were removed
    for checkpoint in kept.parent.glob(f"{STEP_FOLDER}*"):
        if checkpoint == kept:
            continue
        orphans = [f"{_QUEUE_FOLDER}.tmp"]
        if not (checkpoint / "actor").is_dir():
            orphans += [STORE_FOLDER, _QUEUE_FOLDER, f"{_QUEUE_FOLDER}.old"]
        for name in orphans:
            shutil.rmtree(checkpoint / name, ignore_errors=True)
