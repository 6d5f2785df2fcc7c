"""Embedded desktops that faults befall, for `chaos.py`: `environment.provider=chaos_desktop:make`.

Nothing in the package knows of it. Faults come from outside: a proxy between OSWorld's client and the guest at the
provider's address, signals to the sandbox's processes, the file systems, the worker process itself. Which one, and
when, is in the episode's task; each comes once, so that the next attempt is a fair one.

What is so on the desktop is read past guest, client and metrics: its files, through the kernel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import json
import os
import signal
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.desktops.config import EMBEDDED, EnvironmentConfig
from arpo_verl.desktops.embedded.provider import EmbeddedProvider
from arpo_verl.desktops.machine_provider import GuestAddress
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment
from arpo_verl.errors import DesktopBootError
from arpo_verl.types import Action, Evaluation, Observation, Task

NOTES_VARIABLE = "CHAOS_NOTES"
"""The folder in which the truth is noted, an episode a file."""
OUTAGE = "outage"
"""While there is a file of this name in that folder, every desktop dies at its next call and none boots."""
SETTLE_S = 1.0
"""At most so long the truth may take to come true after the last action: programs write their answers in their time."""
HUGE_BYTES = 256 << 20
HOME = "home/user"
MAX_READ_BYTES = 1 << 16
CLOCK_JUMP_S = 86_400.0

# Faults of what the guest answers, by how the proxy behaves.
ANSWERS = (
    *("guest_500", "truncated_answer", "huge_answer", "content_length_too_long", "content_length_too_short"),
    *("wrong_size_image", "broken_image", "port_taken", "partition_refused", "partition_silent", "slow"),
)
KINDS = (
    *ANSWERS,
    *("killed", "hung", "x_server_gone", "evaluator_raises", "guest_disk_full", "host_disk_full", "clock_jump"),
    "worker_killed",
)


# --- The truth -------------------------------------------------------------------------------------------------------


def _answer(expected: str) -> Callable[[Path], bool]:
    return lambda home: _text(home / "answer.txt").strip() == expected


def _names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def _text(path: Path) -> str:
    """A file of the guest's, bounded, and no link of its."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            return ""
        raise
    with open(fd, "rb") as file:
        return file.read(MAX_READ_BYTES).decode(errors="replace") if stat.S_ISREG(os.fstat(fd).st_mode) else ""


TRUTHS: dict[str, Callable[[Path], bool]] = {
    "calendar-pick-day": _answer("19.06."),
    "checklist-two-fruits": _answer("Banana,Plum"),
    "code-copy-four": _answer("4"),
    "code-copy-seven": _answer("7"),
    "dialog-confirm-no": _answer("1"),
    "dialog-confirm-yes": _answer("0"),
    "dialog-follow-left": _answer("10"),
    "dialog-follow-right": _answer("20"),
    "editor-replace-text": lambda home: (lambda text: "dogs" in text and "cats" not in text)(_text(home / "pets.txt")),
    "editor-write-hello": lambda home: "hello" in _text(home / "note.txt"),
    "entry-type-name": _answer("anna"),
    "files-delete-old": lambda home: _names(home / "box") == {"keep.txt"},
    "files-new-folder": lambda home: "docs" in _names(home / "box"),
    "files-rename-folder": lambda home: _names(home / "work") == {"final"},
    "form-new-contact": _answer("anna,rome"),
    "form-order-juice": _answer("Juice,TRUE,"),
    "list-scroll-zebra": _answer("Zebra"),
    "message-press-green": _answer("12"),
    "password-log-in": _answer("1234"),
    "radio-size-large": _answer("Large"),
    "scale-volume-one": _answer("1"),
    "scale-volume-three": _answer("3"),
    "terminal-make-folder": lambda home: "docs" in _names(home),
    "text-copy-ticket": _answer("TK-58213-QX"),
}
"""By task, whether it is done, by the files of the user's home alone. Tasks that only the X server's state tells are
left out."""


def processes(pid: int) -> list[int]:
    """`pid` and what is below it, parents first: by every process's parent, since `/proc/PID/task/*/children` may miss
    some while others end."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return [pid]


# --- The proxy -------------------------------------------------------------------------------------------------------


class Proxy:
    """A port that leads to the guest server's, and answers in its place as `mode` says."""

    def __init__(self, target: int):
        self.mode = ""
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError):
            client.settimeout(120)
            if self.mode == "partition_refused":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
                return
            request, path = _request(client)
            if self.mode == "partition_silent":
                client.recv(1)  # until the client gives up
                return
            if self.mode == "slow":
                time.sleep(0.5)
            self._answer(client, request, path)

    def _answer(self, client: socket.socket, request: bytes, path: str) -> None:
        mode = self.mode
        if mode == "guest_500":
            _send(client, b"it broke", status="500 Internal Server Error")
        elif mode == "port_taken":
            _send(client, b"<html>another service</html>", status="404 Not Found")
        elif mode == "evaluator_raises" and path in ("/execute", "/file"):
            _send(client, b"[[[ no JSON", kind="application/json")
        elif mode == "wrong_size_image" and path == "/screenshot":
            _send(client, _png((320, 200)), kind="image/png")
        elif mode == "broken_image" and path == "/screenshot":
            _send(client, _png((640, 480))[:200], kind="image/png")
        elif mode == "huge_answer":
            client.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {HUGE_BYTES}\r\n\r\n".encode())
            for _ in range(HUGE_BYTES >> 20):
                client.sendall(b"\0" * (1 << 20))
        else:
            self._pass_on(client, request, mode)

    def _pass_on(self, client: socket.socket, request: bytes, mode: str) -> None:
        with socket.create_connection(("127.0.0.1", self._target), timeout=120) as guest:
            guest.sendall(request)
            if not mode or mode == "slow":
                while piece := guest.recv(1 << 16):
                    client.sendall(piece)
                return
            answer = b"".join(iter(lambda: guest.recv(1 << 16), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        if mode == "truncated_answer":
            client.sendall(head + b"\r\n\r\n" + body[: len(body) // 2])
        elif mode.startswith("content_length"):
            lie = 10 * len(body) + 10 if mode.endswith("long") else len(body) // 2
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
            client.sendall(b"\r\n".join([*lines, f"Content-Length: {lie}".encode()]) + b"\r\n\r\n" + body)
        else:
            client.sendall(answer)


def _request(client: socket.socket) -> tuple[bytes, str]:
    """A whole request, changed so that the guest ends the connection after its answer; and its path."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = client.recv(1 << 16)
        if not piece:
            raise ValueError("the client has gone")
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    length = next((int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        body += client.recv(1 << 16)
    lines = [line for line in lines if not line.lower().startswith(b"connection:")]
    path = first.split(b" ")[1].decode().split("?")[0]
    return b"\r\n".join([first, *lines, b"Connection: close"]) + b"\r\n\r\n" + body, path


def _send(client: socket.socket, body: bytes, status: str = "200 OK", kind: str = "text/html") -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    client.sendall(head.encode() + body)


def _png(size: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise(size, 50).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


class ProxiedProvider(EmbeddedProvider):
    """An embedded desktop whose guest server is reached through a proxy."""

    proxy: Proxy | None = None

    def address(self) -> GuestAddress:
        address = super().address()
        if self.proxy is None or self.proxy._target != address.server_port:
            self._close_proxy()
            self.proxy = Proxy(address.server_port)
        return address._replace(server_port=self.proxy.port)

    def stop(self) -> None:
        self._close_proxy()
        super().stop()

    def _close_proxy(self) -> None:
        if self.proxy is not None:
            self.proxy.close()
            self.proxy = None

    def processes(self) -> list[int]:
        """Of the sandbox, outermost first."""
        return [] if self._guest is None else processes(self._guest._process.pid)

    def kill(self) -> None:
        """All of it: the desktop outlives bubblewrap's outer process."""
        for pid in reversed(self.processes()):
            _signal(pid, signal.SIGKILL)

    def home(self) -> Path | None:
        """The user's home in the sandbox, as the kernel shows it; None when there is no sandbox."""
        for pid in self.processes():
            root = Path(f"/proc/{pid}/root")
            with contextlib.suppress(OSError):
                if not os.path.samestat(os.stat(f"{root}/"), os.stat("/")) and (root / HOME).is_dir():
                    return root / HOME
        return None


class ProxiedEnvironment(OSWorldEnvironment):
    """As the package's, with the proxy in between."""

    def _make_provider(self) -> Any:
        return ProxiedProvider(self._config.screen_size, **self._config.provider_options)


# --- The desktop -----------------------------------------------------------------------------------------------------


class ChaosDesktop(DesktopEnvironment):
    """Brings a task's fault about at its moment, and notes the truth when the task is evaluated.

    The task's spec has `chaos`: `episode`, and where it is to fail `fault` and `at` (`reset`, `step` or `evaluate`).
    """

    def __init__(self, config: EnvironmentConfig, name: str):
        self._name = name
        self._inner = ProxiedEnvironment(dataclasses.replace(config, provider=EMBEDDED), name)
        self._notes = Path(os.environ[NOTES_VARIABLE])
        self._chaos: dict[str, Any] = {}
        self._task_id = ""
        self._undo: list[Callable[[], None]] = []

    def prepare(self) -> None:
        self._be_well()
        if self._in_outage():
            raise DesktopBootError("the engine is down")
        self._inner.prepare()

    def is_ready(self) -> bool:
        return self._inner.is_ready()

    def reset(self, task: Task) -> Observation:
        self.prepare()
        self._task_id, self._chaos = task.task_id, dict(task.spec.get("chaos") or {})
        self._fail_at("reset")
        return self._inner.reset(task)

    def step(self, action: Action) -> Observation:
        self._fail_at("step")
        return self._inner.step(action)

    def evaluate(self) -> Evaluation:
        before = self._settled_truth()
        self._fail_at("evaluate")
        try:
            evaluation = self._inner.evaluate()
        except BaseException as error:
            self._note(before=before, error=type(error).__name__)
            raise
        self._note(before=before, after=self._truth(), score=evaluation.score)
        return evaluation

    def close(self) -> None:
        self._be_well()
        self._inner.close()

    # --- Faults ------------------------------------------------------------------------------------------------

    @property
    def _provider(self) -> ProxiedProvider | None:
        provider: ProxiedProvider | None = self._inner._provider
        return provider

    def _be_well(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _in_outage(self) -> bool:
        return (self._notes / OUTAGE).exists()

    def _fail_at(self, moment: str) -> None:
        if self._in_outage() and self._provider is not None:
            self._provider.kill()
        fault = self._chaos.get("fault")
        if fault is None or self._chaos["at"] != moment:
            return
        try:
            (self._notes / f"injected-{self._chaos['episode']}").touch(exist_ok=False)
        except FileExistsError:
            return  # it has had its turn
        self._bring_about(fault)

    def _bring_about(self, fault: str) -> None:
        provider = self._provider
        assert provider is not None and provider.proxy is not None
        proxy = provider.proxy
        if fault in ANSWERS or fault == "evaluator_raises":
            proxy.mode = fault
            self._undo.append(lambda: setattr(proxy, "mode", ""))
        elif fault == "killed":
            provider.kill()
        elif fault == "hung":
            for pid in provider.processes():
                _signal(pid, signal.SIGSTOP)
        elif fault == "x_server_gone":
            for pid in provider.processes():
                if _command(pid) == "Xvfb":
                    _signal(pid, signal.SIGKILL)
        elif fault == "guest_disk_full":
            home = provider.home()
            assert home is not None
            self._undo.append(_fill(home / ".full"))
        elif fault == "host_disk_full":
            self._undo.append(_fill(Path(tempfile.gettempdir()) / f"full-{self._chaos['episode']}"))
        elif fault == "clock_jump":
            self._undo.append(_jump())
        elif fault == "worker_killed":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            raise AssertionError(f"no such fault: {fault}")

    # --- The truth ---------------------------------------------------------------------------------------------

    def _settled_truth(self) -> bool | None:
        deadline = time.monotonic() + SETTLE_S
        while not (truth := self._truth()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return truth

    def _truth(self) -> bool | None:
        """Whether the task is done; None when that cannot be seen: the desktop is gone, or files do not tell."""
        check, provider = TRUTHS.get(self._task_id), self._provider
        home = None if check is None or provider is None else provider.home()
        if check is None or home is None:
            return None
        try:
            return check(home)
        except OSError:
            return None  # it died meanwhile

    def _note(self, **values: Any) -> None:
        whose = {"desktop": self._name, "task_id": self._task_id, "time": _real_time()}
        with open(self._notes / f"verdict-{self._chaos.get('episode')}", "a") as file:
            file.write(json.dumps(whose | values) + "\n")


def make(config: EnvironmentConfig, name: str) -> ChaosDesktop:
    """As the pool's workers call it."""
    return ChaosDesktop(config, name)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _fill(path: Path) -> Callable[[], None]:
    """Write a file until its file system is full; returns what removes it."""
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"\0" * size) == size:
                    pass
    return lambda: path.unlink(missing_ok=True)


_real_time = time.time


def _jump() -> Callable[[], None]:
    """The wall clock of this process goes a day ahead, as when it is set; returns what sets it right."""
    time.time = lambda: _real_time() + CLOCK_JUMP_S

    def right() -> None:
        time.time = _real_time

    return right
