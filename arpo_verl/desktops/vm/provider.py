"""QEMU's virtual machines as machines that OSWorld's client controls."""

from __future__ import annotations

import logging
import shutil
import threading
import time

from arpo_verl.desktops.config import EnvironmentConfig, VmConfig, read_password
from arpo_verl.desktops.machine_provider import GuestAddress, MachineProvider, proof_of
from arpo_verl.desktops.provider_checks import desktop_index, vm_path
from arpo_verl.desktops.vm import template
from arpo_verl.desktops.vm.image import Image
from arpo_verl.desktops.vm.machine import VirtualMachine, own_folder
from arpo_verl.errors import DesktopBootError
from arpo_verl.lib.relay import HOST
from arpo_verl.types import Size

logger = logging.getLogger(__name__)


class QemuProvider(MachineProvider):
    """The provider has one machine at a time: a clone of the image's template, or a cold boot if the recipe says so.

    Every reset makes another machine, after the old one is gone. Any thread may call its methods, one at a time;
    `stop` may also be called while another one hangs, and ends that one.
    """

    def __init__(
        self,
        config: VmConfig,
        path_to_vm: str,
        screen_size: Size,
        boot_timeout_s: float = 300.0,
        password: str = template.PASSWORD,
    ):
        """Check the image; nothing starts yet.

        Args:
            password: password of the guest's user, for images without QEMU's agent.

        Raises:
            ConfigError: `path_to_vm` is no image.
        """
        self._config = config
        self._image = Image.at(path_to_vm)
        self._screen = screen_size
        self._boot_timeout_s = boot_timeout_s
        self._password = password or template.PASSWORD
        self._machine: VirtualMachine | None = None
        self._lock = threading.RLock()
        self._stops = 0

    @classmethod
    def of_config(cls, config: EnvironmentConfig, name: str) -> QemuProvider:
        """Return the provider for the desktop `name` of a recipe's section."""
        path, password = str(vm_path(config, desktop_index(name))), read_password(config.password)
        return cls(config.vm, path, config.screen_size, config.boot_timeout_s, password)

    def start(self) -> None:
        """Start a machine, if none runs, and wait for its desktop.

        Raises:
            DesktopBootError: the machine did not come up.
            MissingDependencyError: a program or a Python package is not installed.
        """
        stops = self._stops
        with self._lock:
            if self._machine is None or not self._machine.is_alive():
                self._start(stops)

    def address(self) -> GuestAddress:
        """Return the guest's address, whose ports change with each reset.

        Raises:
            DesktopBootError: no machine was started.
        """
        if self._machine is None:
            raise DesktopBootError("the machine is not running: call start first")
        return GuestAddress.forwarded(HOST, self._machine.ports)

    def reset(self) -> None:
        """Start another machine in the place of this one.

        Raises:
            DesktopBootError: the machine did not come up.
        """
        stops = self._stops
        with self._lock:
            self._end()
            self._start(stops)

    def stop(self) -> None:
        """Release processes, memory and ports. Safe to call twice. A start in another thread fails, also one that waits
        for another process's template."""
        self._stops += 1
        self._end()

    def _end(self) -> None:
        machine, self._machine = self._machine, None
        if machine is not None:
            machine.close()

    def why_gone(self) -> str:
        """Return why the machine is gone; empty if it runs."""
        machine = self._machine
        return "it was stopped" if machine is None else machine.why_gone()

    def why_ended(self) -> str:
        machine = self._machine
        return "" if machine is None else proof_of(machine.why_down())

    def _start(self, stops: int) -> None:
        """Start a machine, unless `stop` has been called since the count `stops`."""
        began = time.monotonic()
        config, timeout_s = self._config, self._boot_timeout_s
        wanted = config, self._image, self._screen

        def is_stopped() -> bool:
            return self._stops != stops

        def made(machine: VirtualMachine) -> None:
            self._machine = machine
            if is_stopped():
                raise DesktopBootError("the machine was stopped while it started")

        folder = None
        if config.template:
            folder = template.ensure(*wanted, timeout_s, self._password, is_stopped=is_stopped)
        _check_disk(config)
        try:
            template.start(*wanted, folder, timeout_s, self._password, made)
        except BaseException:
            self._end()
            if folder is not None:
                template.doubt(folder)
            raise
        origin = "booted" if folder is None else "cloned"
        logger.info("a machine was %s after %.2f s", origin, time.monotonic() - began)


def _check_disk(config: VmConfig) -> None:
    """Check that the disk has room for all that a machine may write, so that a guest cannot fill the host's disk."""
    free_mib = shutil.disk_usage(own_folder(config.path)).free >> 20
    if free_mib < config.disk_mib:
        needed = f"a machine may write {config.disk_mib} MiB (environment.vm.disk_mib); make room"
        raise DesktopBootError(f"{config.path} has {free_mib} MiB free, but {needed}")
