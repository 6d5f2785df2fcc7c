"""A checkpoint when somebody asks for one, as a node's manager does that is about to take the node away.

veRL's V1 trainer saves by `trainer.save_freq` alone and handles no SIGTERM, and Ray ends a driver at once on it. So the
ask is a file, `touch RUN_DIR/checkpoints/save-now`: the step that runs is trained to its end and saved.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)

REQUEST_FILE = "save-now"
POLL_S = 2.0


class SaveRequest:
    """Looks for the file, and has the trainer save at the end of the step meanwhile.

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
