"""Run the stock trainer as a child process whose output goes to a file."""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from arpo_verl.lib.reaper import marked_environment, processes_with
from arpo_verl.records.starting import LAST_LINES, REFUSED, last_lines

STOPPING_S = 10.0
"""Seconds that a trainer has to end after Ctrl-C."""
FAILED = "the trainer failed"
"""A line of `plugin.run_callback` in the output of a trainer that an error ends, which may then hang for minutes."""
_START = "ARPO_VERL_START"
"""Environment variable of all processes of one start."""
_REFUSAL_LINES = 200
_ERROR_LINES = 400
"""Lines that may follow `FAILED`: a worker's traceback within the trainer's."""

_LASTING = re.compile(
    r"\barpo_verl\.errors\.(?:Config|Task|Replay|PatchLost|MissingDependency)Error\b|"
    r"\barpo_verl\.errors\.SeveralErrors\b"
)
"""Errors that another start would meet again, in a traceback."""


class TrainerProcess:
    """A running trainer. It has its own session, so Ctrl-C reaches Ray's processes only through the trainer.

    Args:
        command: its command line.
        log: file for its output, and for that of all processes that it starts. Earlier output stays.
        env: its environment.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        self.was_stopped = False
        """Whether we passed a signal on to it before it failed."""
        self.got_signal = False
        """Whether we passed a signal on to it at any time."""
        self._kill_at = math.inf
        self._name = secrets.token_hex(16)
        with log.open("ab") as file:
            self._begin = file.tell()
            self._process = subprocess.Popen(
                command,
                env={**marked_environment(env), _START: self._name},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._end = os.pidfd_open(self._process.pid)

    def has_ended(self, within_s: float) -> bool:
        """Wait for its end, at most so long; return whether it has ended. Kill it if it does not end after Ctrl-C."""
        select.select([self._end], [], [], within_s)
        if time.monotonic() > self._kill_at:
            self._process.kill()
        return self._process.poll() is not None

    @property
    def status(self) -> int:
        """Return the exit status as a shell does: 128 plus the signal's number if a signal ended it."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    @contextlib.contextmanager
    def gets_signals(self) -> Iterator[None]:
        """Pass signals on to the trainer; a second Ctrl-C kills it. Ignored signals stay ignored."""

        def hand_on(number: int, frame: FrameType | None) -> None:
            self.got_signal = True
            is_second = self.was_stopped and number == signal.SIGINT
            self.was_stopped = self.was_stopped or FAILED not in self.last_lines(_ERROR_LINES)
            if number == signal.SIGINT:
                self._kill_at = min(self._kill_at, time.monotonic() + STOPPING_S)
            self._process.send_signal(signal.SIGKILL if is_second else number)

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        earlier = {number: signal.getsignal(number) for number in numbers}
        taken = [number for number, handler in earlier.items() if handler is not signal.SIG_IGN]
        try:
            for number in taken:
                signal.signal(number, hand_on)
            yield
        finally:
            for number in taken:
                signal.signal(number, earlier[number])

    def describe_end(self) -> str:
        """Describe how it ended."""
        code = self._process.wait()
        if code >= 0:
            return f"the trainer ended with exit status {code}"
        name = {number.value: number.name for number in signal.Signals}.get(-code, f"signal {-code}")
        hints: dict[int, str] = {
            signal.SIGKILL: " (the kernel does that when memory runs out, see `dmesg`)",
            signal.SIGALRM: ", which had failed and did not end by itself,",
        }
        hint = hints.get(-code, "")
        return f"{name} ended the trainer" + (hint if self._kill_at == math.inf else "")

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        """Return the last lines of this start's output."""
        return last_lines(self.log, count, self._begin)

    def refusal(self) -> list[str]:
        """Return the output of our checks of the recipe if they ended the trainer at its start; otherwise nothing."""
        lines = self.last_lines(_REFUSAL_LINES) if self.status == 1 else []
        first = next((number for number, line in enumerate(lines) if line.startswith(REFUSED)), len(lines))
        return [line.replace(REFUSED, "arpo-verl: ", 1) if line.startswith(REFUSED) else line for line in lines[first:]]

    def left(self) -> list[int]:
        """Return the processes of this start that still run."""
        return processes_with(f"{_START}={self._name}")

    def has_lasting_error(self) -> bool:
        """Return whether an error of ours ended it that another start would meet again."""
        lines = self.last_lines(_ERROR_LINES)
        return FAILED in lines and any(map(_LASTING.search, lines[lines.index(FAILED) :]))
