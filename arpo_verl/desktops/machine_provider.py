"""A provider keeps a desktop's machine for OSWorld's client: one class for each kind of machine, also your own."""

from __future__ import annotations

import ipaddress
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from arpo_verl.errors import ConfigError

SERVER_PORT, CHROMIUM_PORT, VLC_PORT = GUEST_PORTS = (5000, 9222, 8080)
"""The ports of OSWorld's guests."""
_VNC_PORT = 0  # OSWorld's client keeps this number and never uses it


class GuestAddress(NamedTuple):
    """A guest's server and two of its programs listen here. By default the ports are those of OSWorld's machines."""

    host: str
    """An IPv4 address, or `localhost`."""
    server_port: int = SERVER_PORT
    chromium_port: int = CHROMIUM_PORT
    vlc_port: int = VLC_PORT

    @classmethod
    def forwarded(cls, host: str, ports: Mapping[int, int]) -> GuestAddress:
        """Return the address of a guest whose ports are forwarded.

        Args:
            ports: the host's port for each of `GUEST_PORTS`.
        """
        return cls(host, *(ports[port] for port in GUEST_PORTS))


MAX_OUTPUT = 1 << 20
"""Most bytes of a reward program's output that we read."""


@dataclass(frozen=True)
class RewardProgramRun:
    """A reward program's output, after it ran alone in its desktop."""

    stdout: bytes
    stderr: bytes
    """Both at most one byte longer than `MAX_OUTPUT`."""
    returncode: int | None
    """The exit status; None if it did not end in time."""
    spoiled: str = ""
    """Why it could not run: an obstacle that the desktop's programs left."""


@dataclass(frozen=True)
class Ended:
    """How the X server or the guest server ended without a crash: someone ended it, or the desktop's memory ran out."""

    cause: str
    is_proof: bool
    """Whether only the desktop's programs can have done it: they ended all processes that they may, and process 1
    lives, or they used up the desktop's memory. A host's owner may also end a single process."""


def proof_of(ended: Ended | None) -> str:
    """Return how the desktop's own programs ended it; empty without proof."""
    return ended.cause if ended is not None and ended.is_proof else ""


class MachineProvider(ABC):
    """A provider keeps one machine at a time, which OSWorld's client drives in the same way as all others.

    A subclass says how to start its machine, where its guest is, and how to throw it away. Name yours as
    `environment.provider=package.module:Class`: we call it with the recipe's section, an `EnvironmentConfig`, and the
    desktop's name. One thread calls it at a time, but another may call `stop` while `start` hangs. If `start` raises,
    the desktop did not boot and we try another one; a `ConfigError` or a `MissingDependencyError` ends the run.
    """

    @abstractmethod
    def start(self) -> None:
        """Start a machine that no episode has used, and return when its guest shows a screen.

        Raises:
            DesktopBootError: it did not start.
        """

    @abstractmethod
    def address(self) -> GuestAddress:
        """Return the address of the running machine's guest; called after each `start`."""

    @abstractmethod
    def stop(self) -> None:
        """Throw the machine away, with all that it holds. Safe to call twice."""

    def reset(self) -> None:
        """Remove what an episode left; `start` comes next. By default this is `stop`; override it to be faster."""
        self.stop()

    def boot_next(self) -> None:  # noqa: B027  optional on purpose
        """Begin to boot the next machine, once an episode has this one. This is optional: it saves the next episode the
        wait."""

    def why_gone(self) -> str:
        """Return why the machine is gone; empty if it runs, or if only its guest can show that.

        We ask before each action, and before and after each verdict, since another machine may answer at a dead one's
        address.
        """
        return ""

    def why_ended(self) -> str:
        """Return how the guest's programs ended their own desktop; empty without proof. With proof the episode is over
        and scores 0; without, it is played again."""
        return ""

    # --- OSWorld's provider interface; the client passes `path_to_vm` and more, which a machine knows already ---------

    def start_emulator(self, path_to_vm: str = "", headless: bool = True, os_type: str = "Ubuntu") -> None:
        """Do the same as `start`."""
        self.start()

    def get_ip_address(self, path_to_vm: str = "") -> str:
        """Return `address` in the client's form: `address:server:chromium:vnc:vlc`, the last four as ports.

        Raises:
            ConfigError: the host is a name; it would go to this host's proxies, if there are any.
        """
        host, server, chromium, vlc = self.address()
        if host != "localhost":
            try:
                ipaddress.IPv4Address(host)
            except ValueError as error:
                raise ConfigError(
                    f"{type(self).__name__}.address must give an IPv4 address or localhost, got {host!r}"
                ) from error
        return f"{host}:{server}:{chromium}:{_VNC_PORT}:{vlc}"

    def revert_to_snapshot(self, path_to_vm: str = "", snapshot_name: str = "") -> str:
        """Do the same as `reset`; return `path_to_vm`, since the machine's name stays the same."""
        self.reset()
        return path_to_vm

    def stop_emulator(self, path_to_vm: str = "", region: object = None) -> None:
        """Do the same as `stop`."""
        self.stop()
