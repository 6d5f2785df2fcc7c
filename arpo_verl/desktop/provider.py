"""The embedded desktop as a machine that OSWorld's client drives."""

from __future__ import annotations

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from arpo_verl.config import require
from arpo_verl.desktop.cgroups import Limits
from arpo_verl.desktop.guest_process import Ended, GuestProcess, RewardProgramRun, proof_of
from arpo_verl.desktop.machine_provider import GUEST_PORTS, GuestAddress, MachineProvider
from arpo_verl.desktop.process import LastingThread
from arpo_verl.desktop.relay import HOST, Relay
from arpo_verl.desktop.web_apps import WebApp, pack
from arpo_verl.errors import DesktopBootError
from arpo_verl.types import Size

logger = logging.getLogger(__name__)

DEFAULT_SIZE = Size(640, 480)
SMALLEST, LARGEST = Size(160, 120), Size(4096, 4096)
_background = LastingThread("desktop-background")
"""Boots and closes this process's desktops behind their episodes, one at a time: those take what is left."""


class EmbeddedProvider(MachineProvider):
    """One desktop on this machine at a time, each in a sandbox of its own: an X server with real programs.

    `start` and `reset` both leave a desktop that nobody has connected to since it booted, in a
    sandbox that no other desktop ever had. They boot one unless `boot_next` did so already. The ports stay the same.
    Methods may be called from any thread, one at a time.
    """

    def __init__(
        self,
        screen_size: Size | Sequence[int] = DEFAULT_SIZE,
        *,
        command_timeout_s: float = 120.0,
        boot_timeout_s: float = 60.0,
        extra_read_only: Sequence[str] = (),
        memory_mib: int = Limits.memory_mib,
        cpus: float | None = Limits.cpus,
        pids: int = Limits.pids,
    ):
        """Check the options; nothing starts yet.

        Args:
            screen_size: pixels, from 160x120 to 4096x4096.
            command_timeout_s: a command of `/execute` that takes longer is killed. OSWorld's own server gives 120 s;
                below the client's patience of 90 s, the client runs a command that was killed anew.
            boot_timeout_s: a desktop that is not up by then counts as failed.
            extra_read_only: folders of this machine that its programs may read beside the system's, such as
                `/opt/some-program`. Everything there can be read by whatever the policy types.
            memory_mib, cpus, pids: what its programs together may use up, see `cgroups.Limits`. Where the machine
                offers us no cgroup, `memory_mib` is of each program and `cpus` is not kept: see `arpo-verl doctor`.

        Raises:
            ConfigError: an option is out of range.
        """
        self.screen_size = _checked_size(screen_size)
        for name, value in (("command_timeout_s", command_timeout_s), ("boot_timeout_s", boot_timeout_s)):
            require(isinstance(value, (int, float)) and 0 < value < float("inf"), name, "more than 0 seconds", value)
        for name, value, least in (("memory_mib", memory_mib, 256), ("pids", pids, 64)):
            require(type(value) is int and value >= least, name, f"a whole number of at least {least}", value)
        ok = cpus is None or (isinstance(cpus, (int, float)) and 0.01 <= cpus < float("inf"))
        require(ok, "cpus", "at least 0.01 processors, or null", cpus)
        self._limits = Limits(memory_mib, cpus, pids)
        self._command_timeout_s = command_timeout_s
        self._boot_timeout_s = boot_timeout_s
        self._extra_read_only = tuple(extra_read_only)
        self._guest: GuestProcess | None = None
        self._next: Future[GuestProcess] | None = None
        self._relay: Relay | None = None
        self._connections_at_boot = 0
        self._lock = threading.RLock()

    def start(self) -> None:
        """Have a clean desktop.

        Raises:
            DesktopBootError: it did not come up.
            MissingDependencyError: a program or a Python package is not installed.
        """
        with self._lock:
            if not self._is_clean():
                self._swap()

    def boot_next(self) -> None:
        """Boot the next desktop in the background, as this one was given to an episode. Safe to call twice."""
        with self._lock:
            if self._next is None:
                self._next = _background.submit(self._make_guest())

    def address(self) -> GuestAddress:
        """The same after each reset.

        Raises:
            DesktopBootError: no desktop was started.
        """
        if self._relay is None:
            raise DesktopBootError("the desktop is not running: call start first")
        return GuestAddress.forwarded(HOST, self._relay.ports)

    def reset(self) -> None:
        """As `start`: what an episode has used is not clean."""
        self.start()

    def stop(self) -> None:
        """Give back everything: processes, memory, ports. Safe to call twice."""
        with self._lock:
            relay, self._relay = self._relay, None
            if relay is not None:
                relay.close()
            guest, self._guest = self._guest, None
            if guest is not None:
                guest.close()
            self._drop_next()

    def is_alive(self) -> bool:
        """Whether the desktop's sandbox runs; the X server in it may have been killed by the policy all the same."""
        return self._guest is not None and self._guest.is_alive()

    def why_down(self) -> Ended | None:
        """See `GuestProcess.why_down`; None where the sandbox itself does not run."""
        with self._lock:
            return None if self._guest is None else self._guest.why_down()

    def why_gone(self) -> str:
        """Empty but where this host took memory from the desktop: a program that is closed then was not closed by the
        policy."""
        guest = self._guest
        is_hit = guest is not None and guest.was_hit_by_host()
        return "this host had no memory left, and its kernel killed a program of the desktop" if is_hit else ""

    def why_ended(self) -> str:
        return proof_of(self.why_down())

    # --- Bundles: a task's web applications, and its reward program ---------------------------------------------------

    def serve_apps(self, apps: Sequence[WebApp]) -> None:
        """Serve mock web applications on the desktop's loopback.

        Raises:
            DesktopSetupError: one is not built.
            DesktopBootError: they do not start.
        """
        archive = pack(apps)
        with self._lock:
            self._running_guest().serve_apps(archive, self._boot_timeout_s)

    def seal(self) -> None:
        """Say that the task's set-up is over, see `GuestProcess.seal`.

        Raises:
            DesktopBootError: the sandbox is gone.
        """
        with self._lock:
            self._running_guest().seal()

    def run_reward_program(self, program: str, timeout_s: float) -> RewardProgramRun:
        """Run a reward program in the desktop, whose programs are killed for it, see `GuestProcess.run_reward_program`.

        Raises:
            DesktopBootError: the sandbox is gone.
        """
        with self._lock:
            guest = self._running_guest()
        # Unlocked: who closes the desktop need not wait for it.
        return guest.run_reward_program(program.encode(), timeout_s)

    def _running_guest(self) -> GuestProcess:
        if self._guest is None:
            raise DesktopBootError("the desktop is not running: call start first")
        return self._guest

    def _is_clean(self) -> bool:
        return self._relay is not None and self.is_alive() and self._relay.connections == self._connections_at_boot

    def _swap(self) -> None:
        """Have another desktop in the place of a used one, whose programs are dead when this returns."""
        started = time.monotonic()
        try:
            new = self._take_next() or self._make_guest()()
            if self._relay is None:
                self._relay = Relay(GUEST_PORTS, _weak_connect(self))
        except BaseException:
            self.stop()
            raise
        old, self._guest = self._guest, new
        if old is not None:
            old.kill()
            _background.submit(old.close)
        self._connections_at_boot = self._relay.connections
        logger.info("a desktop of %dx%d is up after %.2f s", *self.screen_size, time.monotonic() - started)

    def _make_guest(self) -> Callable[[], GuestProcess]:
        """What boots a desktop, and keeps no provider alive that is forgotten meanwhile."""
        size, command_s, boot_s = self.screen_size, self._command_timeout_s, self._boot_timeout_s
        extra, limits = self._extra_read_only, self._limits

        def make() -> GuestProcess:
            guest = GuestProcess(extra, limits)
            try:
                guest.boot(size, command_s, boot_s)
            except BaseException:
                guest.close()
                raise
            return guest

        return make

    def _take_next(self) -> GuestProcess | None:
        """The desktop that `boot_next` booted; None where it has none, or has not begun."""
        future, self._next = self._next, None
        if future is None or future.cancel():
            return None
        try:
            guest = future.result()
        except DesktopBootError as error:
            logger.warning("the next desktop did not boot in the background: %s", error)
            return None
        if guest.is_alive():
            return guest
        guest.close()
        return None

    def _drop_next(self) -> None:
        if (guest := self._take_next()) is not None:
            guest.close()

    def _connect(self, port: int, fd: int) -> None:
        guest = self._guest
        if guest is None:
            raise ConnectionRefusedError("the desktop is not running")
        guest.connect(port, fd)

    def __del__(self) -> None:
        # The sandbox ends with its GuestProcess, by itself. At the interpreter's end so does everything else.
        relay = getattr(self, "_relay", None)
        if relay is not None and not sys.is_finalizing():
            relay.close_soon()


def _weak_connect(provider: EmbeddedProvider) -> Callable[[int, int], None]:
    """`provider._connect` for the relay, whose thread would keep a forgotten provider alive for ever."""
    reference = weakref.ref(provider)

    def connect(port: int, fd: int) -> None:
        provider = reference()
        if provider is None:
            raise ConnectionRefusedError("the desktop was given up")
        provider._connect(port, fd)

    return connect


def _checked_size(size: Size | Sequence[int]) -> Size:
    ok = isinstance(size, (list, tuple)) and len(size) == 2 and all(type(side) is int for side in size)
    ok = ok and SMALLEST.width <= size[0] <= LARGEST.width and SMALLEST.height <= size[1] <= LARGEST.height
    limits = f"[width, height] in pixels from {list(SMALLEST)} to {list(LARGEST)}"
    require(ok, "environment.screen_size", limits, size, "the embedded desktop's X server gives no other")
    return Size(*size)
