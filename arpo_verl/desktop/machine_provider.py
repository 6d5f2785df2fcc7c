"""What keeps a desktop's machine for OSWorld's client: one class for each kind of machine, of yours too."""

from __future__ import annotations

import ipaddress
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from arpo_verl.errors import ConfigError

SERVER_PORT, CHROMIUM_PORT, VLC_PORT = GUEST_PORTS = (5000, 9222, 8080)
"""Of OSWorld's guests."""
_VNC_PORT = 0  # OSWorld's client keeps this number and never uses it


class GuestAddress(NamedTuple):
    """Where a guest's server and two of its programs listen. The ports are those of OSWorld's own machines."""

    host: str
    """An IPv4 address, or `localhost`."""
    server_port: int = SERVER_PORT
    chromium_port: int = CHROMIUM_PORT
    vlc_port: int = VLC_PORT

    @classmethod
    def forwarded(cls, host: str, ports: Mapping[int, int]) -> GuestAddress:
        """The address of a guest whose ports are forwarded.

        Args:
            ports: the host's port for each of `GUEST_PORTS`.
        """
        return cls(host, *(ports[port] for port in GUEST_PORTS))


class MachineProvider(ABC):
    """Keeps one machine at a time, and OSWorld's client drives it: set-up, actions and verdicts are the same on all.

    A subclass says how its machine starts, where its guest is, and how it is thrown away. Name yours as
    `environment.provider=package.module:Class`: it is called with the recipe's section, an `EnvironmentConfig`, and the
    desktop's name. One thread calls it at a time; `stop` also comes from another one while `start` hangs. Whatever
    `start` raises means that the desktop did not boot, and another one is tried; a `ConfigError` or a
    `MissingDependencyError` ends the run.
    """

    @abstractmethod
    def start(self) -> None:
        """Have a machine that no episode has used, and return when its guest shows a screen.

        Raises:
            DesktopBootError: it did not come up.
        """

    @abstractmethod
    def address(self) -> GuestAddress:
        """Where the guest of the machine that runs is found; asked after each `start`."""

    @abstractmethod
    def stop(self) -> None:
        """Throw the machine away, with all that it holds. Safe to call twice."""

    def reset(self) -> None:
        """Be rid of what an episode left; `start` comes next. As `stop`, unless your machine can go back by itself."""
        self.stop()

    def boot_next(self) -> None:  # noqa: B027  optional on purpose
        """Begin to boot the next machine, since an episode has got this one. Optional: it spares that episode's
        successor the wait."""

    def why_gone(self) -> str:
        """Why the machine is no more; empty where it runs, or only its guest knows.

        Asked before each action and before and after each verdict: at the address of a dead machine another one may
        answer.
        """
        return ""

    def why_ended(self) -> str:
        """How programs of the guest ended their own desktop; empty unless that is proved. Then the episode is over
        and scores 0, instead of being played again."""
        return ""

    # --- OSWorld's provider interface; the client passes `path_to_vm` and more, which a machine knows already ---------

    def start_emulator(self, path_to_vm: str = "", headless: bool = True, os_type: str = "Ubuntu") -> None:
        """As `start`."""
        self.start()

    def get_ip_address(self, path_to_vm: str = "") -> str:
        """`address` in the client's words: `address:server:chromium:vnc:vlc`, the last four as ports.

        Raises:
            ConfigError: the host is a name, which no proxy of this host's may resolve.
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

    def save_state(self, path_to_vm: str = "", snapshot_name: str = "") -> None:
        """There is one state to go back to, the fresh machine."""
        raise NotImplementedError(f"{type(self).__name__} keeps no snapshots: it always goes back to a fresh machine")

    def revert_to_snapshot(self, path_to_vm: str = "", snapshot_name: str = "") -> str:
        """As `reset`. Returns `path_to_vm`: the machine's name stays the same."""
        self.reset()
        return path_to_vm

    def stop_emulator(self, path_to_vm: str = "", region: object = None) -> None:
        """As `stop`."""
        self.stop()
