"""The embedded desktop as a machine that OSWorld's client drives."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from arpo_verl.desktops.embedded.cgroups import Limits
from arpo_verl.desktops.embedded.guest_process import ANSWER_TIMEOUT_S, GuestProcess
from arpo_verl.desktops.embedded.process import lasting_thread
from arpo_verl.desktops.embedded.web_apps import WebApp, pack
from arpo_verl.desktops.machine_provider import (
    GUEST_PORTS,
    Ended,
    GuestAddress,
    MachineProvider,
    RewardProgramRun,
    proof_of,
)
from arpo_verl.errors import ConfigError, DesktopBootError
from arpo_verl.lib.config import require
from arpo_verl.lib.relay import HOST, Opener, Relay, to_passed_socket
from arpo_verl.types import Size

if TYPE_CHECKING:
    from arpo_verl.desktops.config import EnvironmentConfig

logger = logging.getLogger(__name__)

DEFAULT_SIZE = Size(640, 480)
SMALLEST, LARGEST = Size(160, 120), Size(4096, 4096)


def _background() -> ThreadPoolExecutor:
    """Return the thread that boots and closes desktops, one at a time, to leave CPUs for the episodes."""
    return lasting_thread("desktop-background")


class EmbeddedProvider(MachineProvider):
    """A provider that keeps one desktop at a time, an X server with real programs, each in its own sandbox.

    After `start` and `reset` the desktop has had no connection since it booted, in a sandbox that no other desktop ever
    had. They boot one unless `boot_next` did so already. The ports stay the same. Any thread may call the methods, one
    at a time.
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
        """Check the options, without starting anything.

        Args:
            screen_size: pixels, from 160x120 to 4096x4096.
            command_timeout_s: a command of `/execute` that takes longer is killed. OSWorld's own server allows 120 s;
                below the client's own time-out of 90 s, the client runs a killed command again.
            boot_timeout_s: a desktop that takes longer to boot counts as failed.
            extra_read_only: folders of this machine that its programs may read beside the system's, such as
                `/opt/some-program`. The policy's programs can read everything there.
            memory_mib, cpus, pids: limits of all its programs together, see `cgroups.Limits`. If the machine offers us
                no cgroup, `memory_mib` limits each program and `cpus` has no effect: see `arpo-verl doctor`.

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

    @classmethod
    def of_config(cls, config: EnvironmentConfig, name: str) -> EmbeddedProvider:
        """Return the provider for a desktop of a recipe's section.

        Raises:
            ConfigError: an option is unknown or out of range.
        """
        try:
            return cls(config.screen_size, **config.provider_options)
        except TypeError as error:
            raise ConfigError(f"environment.provider_options must be EmbeddedProvider's own: {error}") from error

    def start(self) -> None:
        """Start a clean desktop, unless there is one already.

        Raises:
            DesktopBootError: it did not start.
            MissingDependencyError: a program or a Python package is not installed.
        """
        with self._lock:
            if not self._is_clean():
                self._swap()

    def boot_next(self) -> None:
        """Boot the next desktop in the background, while an episode uses this one. Safe to call twice."""
        with self._lock:
            if self._next is None:
                self._next = _background().submit(self._make_guest())

    def address(self) -> GuestAddress:
        """Return the address, which stays the same after each reset.

        Raises:
            DesktopBootError: no desktop was started.
        """
        if self._relay is None:
            raise DesktopBootError("the desktop is not running: call start first")
        return GuestAddress.forwarded(HOST, dict(zip(GUEST_PORTS, self._relay.ports, strict=True)))

    def reset(self) -> None:
        """Do the same as `start`: a desktop that an episode has used is not clean."""
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
            if (guest := self._take_next()) is not None:
                guest.close()

    def is_alive(self) -> bool:
        """Return whether the desktop's sandbox runs; even so, the policy may have killed the X server in it."""
        return self._guest is not None and self._guest.is_alive()

    def why_down(self) -> Ended | None:
        """See `GuestProcess.why_down`; None if there is no sandbox."""
        with self._lock:
            return None if self._guest is None else self._guest.why_down()

    def why_gone(self) -> str:
        """Return a reason only if this host's kernel killed a program for lack of memory: then the policy did not close
        it."""
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
            self._running_guest().ask("serve_apps", {}, self._boot_timeout_s, archive)

    def seal(self) -> None:
        """End the task's set-up: from now on nobody can change the applications' initial state.

        Raises:
            DesktopBootError: the sandbox is gone.
        """
        with self._lock:
            self._running_guest().ask("seal", {}, ANSWER_TIMEOUT_S)

    def run_reward_program(self, program: str, timeout_s: float) -> RewardProgramRun:
        """Kill the desktop's programs and run a reward program in it, see `GuestProcess.run_reward_program`.

        Raises:
            DesktopBootError: the sandbox is gone.
        """
        with self._lock:
            guest = self._running_guest()
        # Not under the lock, so that another thread can close the desktop without waiting.
        return guest.run_reward_program(program.encode(), timeout_s)

    def _running_guest(self) -> GuestProcess:
        if self._guest is None:
            raise DesktopBootError("the desktop is not running: call start first")
        return self._guest

    def _is_clean(self) -> bool:
        return self._relay is not None and self.is_alive() and self._relay.connections == self._connections_at_boot

    def _swap(self) -> None:
        """Replace a used desktop by a new one; the old one's programs are dead when this returns."""
        started = time.monotonic()
        try:
            new = self._take_next() or self._make_guest()()
            if self._relay is None:
                self._relay = Relay([(socket.create_server((HOST, 0)), _opener(self, port)) for port in GUEST_PORTS])
        except BaseException:
            self.stop()
            raise
        old, self._guest = self._guest, new
        if old is not None:
            old.kill()
            _background().submit(old.close)
        self._connections_at_boot = self._relay.connections
        logger.info("a desktop of %dx%d is up after %.2f s", *self.screen_size, time.monotonic() - started)

    def _make_guest(self) -> Callable[[], GuestProcess]:
        """Return a function that boots a desktop, and does not keep a forgotten provider alive."""
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
        """Return the desktop that `boot_next` booted; None if there is none, or if the boot has not begun."""
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

    def _connect(self, port: int, fd: int) -> None:
        guest = self._guest
        if guest is None:
            raise ConnectionRefusedError("the desktop is not running")
        guest.connect(port, fd)

    def __del__(self) -> None:
        # The sandbox ends with its GuestProcess. When the interpreter ends, everything else ends too.
        relay = getattr(self, "_relay", None)
        if relay is not None and not sys.is_finalizing():
            relay.close_soon()


def _opener(provider: EmbeddedProvider, port: int) -> Opener:
    """Return what leads the relay to a guest's port, without keeping a forgotten provider alive."""
    reference = weakref.ref(provider)

    def connect(fd: int) -> None:
        provider = reference()
        if provider is None:
            raise ConnectionRefusedError("the desktop was given up")
        provider._connect(port, fd)

    return to_passed_socket(connect)


def _checked_size(size: Size | Sequence[int]) -> Size:
    ok = isinstance(size, (list, tuple)) and len(size) == 2 and all(type(side) is int for side in size)
    ok = ok and SMALLEST.width <= size[0] <= LARGEST.width and SMALLEST.height <= size[1] <= LARGEST.height
    limits = f"[width, height] in pixels from {list(SMALLEST)} to {list(LARGEST)}"
    require(ok, "environment.screen_size", limits, size, "the embedded desktop's X server has no other sizes")
    return Size(*size)
