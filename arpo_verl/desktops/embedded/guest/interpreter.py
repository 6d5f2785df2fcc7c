"""A warm Python runs many `python -c` commands in one process, with pyautogui imported and connected to X."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import sys
import threading
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import Xlib.error

from . import keyboard, layout, processes

HEAVY_OPTIONS = ("cv2", "mouseinfo", "numpy", "pymsgbox")
"""Packages that pyautogui imports if it finds them: OpenCV, numpy and Tk, which no command of a GUI agent needs."""
WARM = ("pyscreeze", "pytweening", "datetime", "platform", "random", "subprocess")
"""Modules that pyautogui and usual commands import; we import them before the fork."""


@contextlib.contextmanager
def _without_heavy_options() -> Iterator[None]:
    """Make their import fail in this block; afterwards a command may import them itself."""
    hidden = [name for name in HEAVY_OPTIONS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes the import raise ImportError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def warm_up() -> None:
    """Import all but pyautogui itself, which connects to the X server at once."""
    with _without_heavy_options():
        for name in WARM:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every shared page


def import_pyautogui() -> Any:
    """Return pyautogui, ready for XTest input on this desktop."""
    with _without_heavy_options():
        import pyautogui
        from pyautogui import _pyautogui_x11
    # python-xlib's RandR (ext/randr.py: init) overwrites the protocol's own first errors with its own. If one comes, it
    # fails inside the connection, which then answers no more.
    _pyautogui_x11._display.display.error_classes.update(Xlib.error.xerror_class)
    keyboard.teach(pyautogui)
    _pyautogui_x11._mouse_is_swapped_setting = False  # otherwise it asks dconf at the first click
    return pyautogui


def serve(connection: Connection) -> None:
    """Run commands from `connection`, one at a time, until it closes or an answer says that it is the `last`."""
    os.set_inheritable(connection.fileno(), False)  # so it can end before a command's programs do
    pyautogui = import_pyautogui()
    pid = os.getpid()
    connection.send_bytes(b"%d" % pid)
    while True:
        try:
            code = connection.recv_bytes().decode()
        except EOFError:
            return
        pyautogui.PAUSE = 0  # by default it sleeps 0.1 s after every call
        pyautogui.FAILSAFE = False
        result = run(code)
        if os.getpid() != pid:  # a fork of the command's own
            os._exit(result["returncode"])
        # If the code left threads or a broken connection to the X server, they end with this process.
        last = threading.active_count() > 1 or _is_broken(pyautogui._pyautogui_x11._display.display)
        connection.send_bytes(json.dumps([result, last]).encode())
        if last:
            return


def _is_broken(display: Any) -> bool:
    """Return whether a python-xlib connection is closed or in the middle of a request: the next call would hang."""
    return bool(display.socket_error or display.send_active or display.recv_active)


def run(code: str) -> dict[str, Any]:
    """Execute `code` as `python -c` would, in its own name space, from the home folder.

    Returns:
        `output` and `error`: what it and its children wrote; `returncode`: the exit status.
    """
    with contextlib.suppress(OSError):  # its programs may have removed it
        os.chdir(layout.HOME)
    layout.adopt()
    sys.argv = ["-c"]
    random.seed()  # as in a fresh interpreter; otherwise all clones of a machine would draw the same numbers
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # an earlier command may have replaced them
    with _Capture() as capture:
        status = _execute(code)
    return {"output": capture.read(1), "error": capture.read(2), "returncode": status}


def _execute(code: str) -> int:
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return (stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without our own frame
        traceback.print_exc()
        return 1
    return 0


class _Capture:
    """Captures standard output and error of this process and its children, in files in memory."""

    def __enter__(self) -> _Capture:
        self._saved = {fd: os.dup(fd) for fd in (1, 2)}
        self._files = {fd: os.memfd_create("output") for fd in (1, 2)}
        for fd, file in self._files.items():
            os.dup2(file, fd)
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for fd, saved in self._saved.items():
            os.dup2(saved, fd)
            os.close(saved)

    def read(self, fd: int) -> str:
        """Return what was written on `fd`; call it once."""
        with open(self._files[fd], "rb") as file:
            return processes.text_of(file)
