"""The guest server's side of the warm interpreters."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from multiprocessing.connection import Connection
from typing import Any

from .processes import CommandTimeout, connect

START_TIMEOUT_S = 20.0
SPARE = 2
"""Idle interpreters that we keep; more run only if as many commands run at once."""


class InterpreterPool:
    """A pool that runs `python -c` code in warm interpreters, which process 1 forks on demand."""

    def __init__(self, process_1: socket.socket):
        self._process_1 = process_1
        self._idle: list[_Interpreter] = []
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """Have one interpreter ready before the first command."""
        self._give_back(self._start())

    def run(self, code: str, timeout_s: float) -> dict[str, Any]:
        """Run `code`; see `interpreter.run`.

        Raises:
            CommandTimeout: the code did not end in time, so it was killed with its children.
        """
        interpreter = self._take()
        try:
            result = interpreter.run(code, timeout_s)
        except BaseException:
            interpreter.kill()
            raise
        self._give_back(interpreter)
        return result

    def _take(self) -> _Interpreter:
        while True:
            with self._lock:
                interpreter = self._idle.pop() if self._idle else None
            if interpreter is None:
                return self._start()
            if interpreter.is_alive():
                return interpreter

    def _give_back(self, interpreter: _Interpreter) -> None:
        with self._lock:
            if len(self._idle) < SPARE and not interpreter.spent:
                self._idle.append(interpreter)
                return
        interpreter.close()

    def _start(self) -> _Interpreter:
        return _Interpreter(connect(self._process_1))


class _Interpreter:
    def __init__(self, connection: Connection):
        self._connection = connection
        self._pid: int | None = None
        self.spent = False
        """Whether it has run its last command."""

    def run(self, code: str, timeout_s: float) -> dict[str, Any]:
        if self._pid is None:
            try:
                self._pid = int(self._receive(START_TIMEOUT_S))
            except EOFError:
                raise OSError("no interpreter starts: the desktop has no process left, or no X server") from None
        self._connection.send_bytes(code.encode(errors="surrogatepass"))
        try:
            result: dict[str, Any]
            result, self.spent = json.loads(self._receive(timeout_s))
            return result
        except EOFError:  # os._exit, a signal or a crash: also an end of the command
            self.spent = True
            return {"output": "", "error": "the command ended its interpreter", "returncode": -1}

    def is_alive(self) -> bool:
        """Return whether it still waits for commands; between them it sends nothing, except its process id at first."""
        return self._pid is None or not self._connection.poll(0)

    def close(self) -> None:
        """Let it end; programs that its commands started keep running."""
        self._connection.close()

    def kill(self) -> None:
        """Kill it with every child that stayed in its session."""
        self.close()
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    def _receive(self, timeout_s: float) -> bytes:
        if not self._connection.poll(timeout_s):
            raise CommandTimeout(f"timed out after {timeout_s:g} seconds")
        return self._connection.recv_bytes()
