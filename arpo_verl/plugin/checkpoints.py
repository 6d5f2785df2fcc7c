"""Our part of the trainer's checkpoints: saved by its callback, the store restored by the sampler.

default_local_dir/global_step_N/actor/     veRL's
                                data.pt    veRL's
                                transfer_queue/    veRL's, in asynchronous modes
                                resume.json    what the run was made of; see `resume.py`
                                replay/    the store as it was after step N; see `persistence.py`
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
    ResumeRecord,
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
# As veRL's modules do it: what a run begins with belongs beside veRL's own "Resuming from ...".
for name in (__name__, restoring.__name__):
    logging.getLogger(name).setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))

STORE_FOLDER = "replay"
REQUEST_FILE = "save-now"
POLL_S = 2.0
_QUEUE_FOLDER = "transfer_queue"
"""veRL's, in asynchronous modes; TransferQueue writes `.tmp` beside it and moves an older one to `.old`."""


class SaveRequest:
    """A checkpoint when somebody asks for one, as a node's manager does that is about to take the node away.

    veRL's V1 trainer saves by `trainer.save_freq` alone and handles no SIGTERM, and Ray ends a driver at once on it. So
    the ask is a file, `touch RUN_DIR/checkpoints/save-now`: the step that runs is trained to its end and saved.

    Args:
        config: the trainer's own, whose `trainer.save_freq` it reads behind every step.
        poll_s: how often it looks.
    """

    def __init__(self, config: Any, poll_s: float = POLL_S):
        self._trainer = config.trainer
        self._file = Path(config.trainer.default_local_dir) / REQUEST_FILE
        self._save_freq = config.trainer.save_freq
        self._ended = threading.Event()
        self._file.unlink(missing_ok=True)  # an earlier start's
        threading.Thread(target=self._watch, args=(poll_s,), name="arpo_verl-save-request", daemon=True).start()

    def _watch(self, poll_s: float) -> None:
        while not self._ended.wait(poll_s):
            if self._trainer.save_freq != 1 and self._file.exists():
                logger.info("%s is there: a checkpoint follows at the end of this step", self._file)
                self._trainer.save_freq = 1

    def saved(self) -> None:
        """A checkpoint is whole: what was asked for is done."""
        self._file.unlink(missing_ok=True)
        # At each: a watch that has just seen the file may say 1 only now, and one more checkpoint follows.
        self._trainer.save_freq = self._save_freq

    def close(self) -> None:
        """Look no more."""
        self._ended.set()


class ReplayCheckpointCallback(CheckpointCallback):
    """`trainer.checkpoint_callback_class`: store and record go into every checkpoint, one is saved when asked for, and
    `trainer.max_actor_ckpt_to_keep` holds over all starts of a run."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)  # type: ignore[no-untyped-call]
        self._request = None if config is None else SaveRequest(config)
        # As the recipe was when the run began: veRL writes into it.
        self._settings = {} if config is None else settings_of(config)

    def on_save(
        self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **kwargs: Any
    ) -> None:
        """Save the record and the sampler's store, and remove what veRL leaves of checkpoints that go."""
        folder = Path(checkpoint_dir)
        tasks = getattr(getattr(trainer, "train_dataset", None), "tasks", ())  # none of another dataset
        write_record(folder, ResumeRecord(tuple(task.task_id for task in tasks), self._settings))
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
    """Fill the empty `store` as it was at the resumed step, or from `replay.seed_from` at the beginning.

    A kill between veRL's own save and the callback leaves a checkpoint without a store: then the newest earlier one
    serves, so that no more is lost than one checkpoint interval.

    Args:
        fingerprint: of this run's policy; asked only where there is a store to read.

    Raises:
        ReplayError: the seeds of a run that begins, or with `refuse` a resumed run's store, are damaged or belong to
            another tokenizer, processor or prompt.
    """
    checkpoint = resumed_checkpoint(resume)
    steps: dict[int, Path] = {}
    if checkpoint is not None:
        last = step_of(checkpoint)
        found = {step_of(path): path for path in checkpoint.parent.glob(f"{STEP_FOLDER}*")} | {last: checkpoint}
        steps = {step: path for step, path in found.items() if step <= last}
    fill_store(store, [steps[step] / STORE_FOLDER for step in sorted(steps, reverse=True)], replay, fingerprint)


def _remove_surplus(kept: Path, trainer: Mapping[str, Any]) -> None:
    """Remove the weights of older checkpoints than the recipe keeps, those of earlier starts among them.

    veRL's workers count what they saved themselves, each start anew (0.9.1, `checkpoint_manager.py:
    BaseCheckpointManager.register_checkpoint`). Checkpoints of later steps stay: they are another branch's.

    Args:
        kept: the checkpoint that was just saved.
        trainer: the recipe's section.
    """
    for part in ("actor", "critic"):
        most = 1 if trainer.get("remove_previous_ckpt_in_save") else trainer.get(f"max_{part}_ckpt_to_keep")
        if not most or most < 1 or not (kept / part).is_dir():  # or the weights are on another machine
            continue
        older = [other for other in kept.parent.glob(f"{STEP_FOLDER}*") if 0 <= step_of(other) < step_of(kept)]
        older = sorted((other for other in older if (other / part).is_dir()), key=step_of, reverse=True)
        for other in older[most - 1 :]:
            logger.info("removed %s: the recipe keeps %d", other / part, most)
            shutil.rmtree(other / part, ignore_errors=True)


def _remove_orphans(kept: Path) -> None:
    """Remove what nobody can resume from: of other checkpoints whose weights veRL has removed
    (`trainer.max_actor_ckpt_to_keep`) the store and the queue, which veRL keeps for ever; and halves of queues that a
    kill left. A queue is as large as the batches in it: at 1080p up to a hundred gigabytes.
    """
    if not (kept / "actor").is_dir():
        return  # the weights are on another machine: nothing to be seen here
    for checkpoint in kept.parent.glob(f"{STEP_FOLDER}*"):
        if checkpoint == kept:
            continue
        orphans = [f"{_QUEUE_FOLDER}.tmp"]
        if not (checkpoint / "actor").is_dir():
            orphans += [STORE_FOLDER, _QUEUE_FOLDER, f"{_QUEUE_FOLDER}.old"]
        for name in orphans:
            shutil.rmtree(checkpoint / name, ignore_errors=True)
