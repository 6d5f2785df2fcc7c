"""End the run when a process that it needs has died, or when nothing in it moves any more.

veRL cannot train on without its engines, rollout workers and queue, but not every death ends it. TransferQueue's client
waits forever for a dead controller, and the sampler for the prompts of a dead rollout worker. So a thread in the
trainer's process looks every five seconds. When the run cannot go on, it notes one sentence and ends the process, and
with it the run. It raises nothing, since Ray and veRL wait in places that no exception reaches. The same command then
resumes from the last checkpoint.

The thread asks no process whether it lives, so a busy one never counts as dead. It reads the actor table of Ray's head
(2.60: `ray/_private/state.py: actors`), which takes a millisecond. There it finds the actors that this process started:
engines, rollout and training workers, the queue, the pool. The pool's own actors host desktops, and it replaces them.
If the head itself dies, Ray ends all of the run's processes after a minute (`gcs_rpc_server_reconnect_timeout_s`).
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray._private.state import actors

from arpo_verl.records.ended_starts import note_fault

logger = logging.getLogger(__name__)

RUN_DIR_VARIABLE = "ARPO_VERL_RUN_DIR"
"""Environment variable of a run's processes with the run's folder; `RunCallback` sets it."""
POLL_S = 5.0
GO_ON = "A new start resumes from the last checkpoint."
NOTE_S = 10.0
_CHARACTERS = 400
"""Most characters of an error in a message."""
_INTENDED = ("RAY_KILL", "OUT_OF_SCOPE", "REF_DELETED", "OWNER_DIED")
"""Ray's reasons for ends that somebody asked for, as when veRL closes its queue."""


class Lasting(str):
    """Why the run cannot go on, if another start would meet it again."""


class RunWatch:
    """Watches this process's run, from `start` on.

    Args:
        stall_timeout_s: seconds without a call of `moved` after which the run counts as stalled.
    """

    def __init__(self, stall_timeout_s: float) -> None:
        self._stall_timeout_s, self._moved_at = stall_timeout_s, time.monotonic()
        self._has_started = False
        self.checks: list[Callable[[], str]] = [_find_dead, self._find_stall]
        """Each returns why the run cannot go on, or ''."""

    def start(self) -> None:
        """Watch from now on, if this process is one of Ray's actors; a second call changes nothing."""
        if not self._has_started and ray.is_initialized() and ray.get_runtime_context().get_actor_id():
            self._has_started = True
            threading.Thread(target=self._watch, name="arpo_verl-watch", daemon=True).start()

    def moved(self) -> None:
        """Note that a prompt is played, a batch is drawn or scored, or a step begins."""
        self._moved_at = time.monotonic()

    def find(self) -> str:
        """Return why the run cannot go on, or ''."""
        for check in self.checks:
            try:
                if sentence := check():
                    return sentence
            except Exception:  # Ray is just ending, or another version of it has another table
                logger.warning("could not look whether the run's processes live", exc_info=True)
        return ""

    def _watch(self) -> None:
        while not (sentence := self.find()):
            time.sleep(POLL_S)
        end_process(sentence)

    def _find_stall(self) -> str:
        if time.monotonic() - self._moved_at < self._stall_timeout_s:
            return ""
        return (
            f"No prompt, batch or step ended in gui_agent.stall_timeout_s={self._stall_timeout_s:g} "
            "seconds. A rollout engine or a training worker may hang: look at the newest logs in Ray's folder on each "
            f"node (by default /tmp/ray/session_latest/logs). {GO_ON}"
        )


def end_process(sentence: str) -> None:
    """Print why the run ends, note it in the run's folder, and end this process at once. Ray then ends the run."""
    print(f"arpo_verl: the run ends: {sentence}", flush=True)
    writer = threading.Thread(target=_note, args=(sentence,), daemon=True)
    writer.start()
    writer.join(NOTE_S)  # a network's disk that hangs keeps no run alive
    os._exit(1)


def _note(sentence: str) -> None:
    if RUN_DIR_VARIABLE in os.environ:
        note_fault(Path(os.environ[RUN_DIR_VARIABLE]), sentence, isinstance(sentence, Lasting))


def in_words(error: object) -> str:
    """Return an error or its text on one line, shortened, without the colours and underlined code of Ray's messages."""
    text = " ".join(re.sub(r"\x1b\[[\d;]*m|\^{2,}", "", str(error)).split())
    text = text.partition(" Some common causes include")[0]  # a text of Ray's that is always the same
    if isinstance(error, BaseException):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS // 2]} ... {text[-_CHARACTERS // 2 :]}"


def _find_dead() -> str:
    context = ray.get_runtime_context()
    me = actors(context.get_actor_id())["Address"]
    dead = actors(job_id=ray.JobID.from_hex(context.get_job_id()), actor_state_name="DEAD")
    crashed = [actor for actor in dead.values() if actor["OwnerAddress"] == me and _has_crashed(actor)]
    return _describe(crashed[0]) if crashed else ""


def _has_crashed(actor: dict[str, Any]) -> bool:
    died = actor["DeathCause"].actor_died_error_context
    reason = died.DESCRIPTOR.fields_by_name["reason"].enum_type.values_by_number[died.reason].name
    return reason not in _INTENDED and "Worker exit type: INTENDED" not in died.error_message


def _describe(actor: dict[str, Any]) -> str:
    cause, node, pid = actor["DeathCause"], actor["Address"]["IPAddress"], actor["Pid"]
    context = getattr(cause, cause.WhichOneof("context") or "actor_died_error_context")
    words = getattr(context, "error_message", "") or getattr(context, "formatted_exception_string", "")
    return (
        f"{actor['Name'] or 'A process'} died ({actor['ActorClassName']}, process {pid} on node {node}). Ray says: "
        f"{in_words(words)} Look at worker-*-{pid}.err in Ray's folder on that node (by default /tmp/ray/session_latest"
        f"/logs) and `dmesg` for processes that were killed because memory ran out. {GO_ON}"
    )
