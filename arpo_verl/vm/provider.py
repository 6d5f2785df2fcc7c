"""Virtual machines of QEMU as machines that OSWorld's client drives."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from arpo_verl.desktop.guest_process import Ended, proof_of
from arpo_verl.desktop.machine_provider import GuestAddress, MachineProvider
from arpo_verl.desktop.relay import HOST
from arpo_verl.errors import DesktopBootError
from arpo_verl.types import Size
from arpo_verl.vm import template
from arpo_verl.vm.boot import PASSWORD, check_disk, start
from arpo_verl.vm.config import VmConfig
from arpo_verl.vm.image import Image
from arpo_verl.vm.machine import VirtualMachine

logger = logging.getLogger(__name__)


class QemuProvider(MachineProvider):
    """One machine at a time: a clone of the image's template, or, where there can be none, one that boots cold.

    Every reset is another machine: the old one is gone before the new one starts. Methods may be called from any
    thread, one at a time; `stop` also while another hangs, which ends that.
    """

    def __init__(
        self,
        config: VmConfig,
        path_to_vm: str,
        screen_size: Size,
        boot_timeout_s: float = 300.0,
        password: str = PASSWORD,
    ):
        """Look at the image; nothing starts yet.

        Args:
            password: of the guest's user, for images without QEMU's agent.

        Raises:
            ConfigError: `path_to_vm` is no image.
        """
        self._config = config
        self._image = Image.at(path_to_vm)
        self._screen = screen_size
        self._boot_timeout_s = boot_timeout_s
        self._password = password or PASSWORD
        self._machine: VirtualMachine | None = None
        self._lock = threading.RLock()
        self._stops = 0

    def start(self) -> None:
        """Have a machine whose desktop shows.

        Raises:
            DesktopBootError: it did not come up.
            MissingDependencyError: a program or a Python package is not installed.
        """
        stops = self._stops
        with self._lock:
            if self._machine is None or not self._machine.is_alive():
                self._start(stops)

    def address(self) -> GuestAddress:
        """Other ports after each reset.

        Raises:
            DesktopBootError: no machine was started.
        """
        if self._machine is None:
            raise DesktopBootError("the machine is not running: call start first")
        return GuestAddress.forwarded(HOST, self._machine.ports)

    def reset(self) -> None:
        """Have another machine.

        Raises:
            DesktopBootError: it did not come up.
        """
        stops = self._stops
        with self._lock:
            self._end()
            self._start(stops)

    def stop(self) -> None:
        """Give back everything: processes, memory, ports. Safe to call twice. A start that is under way fails, also one
        that waits for another process's template."""
        self._stops += 1
        self._end()

    def _end(self) -> None:
        machine, self._machine = self._machine, None
        if machine is not None:
            machine.close()

    def why_gone(self) -> str:
        """Why the machine is no more; empty where it runs."""
        machine = self._machine
        return "it was stopped" if machine is None else machine.why_gone()

    def why_down(self) -> Ended | None:
        """What programs of the guest did to end its machine; None where nothing shows that they did."""
        machine = self._machine
        return None if machine is None else machine.why_down()

    def why_ended(self) -> str:
        return proof_of(self.why_down())

    def _start(self, stops: int) -> None:
        """Have a machine, unless there were more than `stops` meanwhile."""
        began = time.monotonic()

        def is_stopped() -> bool:
            return self._stops != stops

        def made(machine: VirtualMachine) -> None:
            self._machine = machine
            if is_stopped():
                raise DesktopBootError("the machine was stopped while it started")

        folder = self._template(is_stopped)
        check_disk(self._config)
        try:
            start(self._config, self._image, self._screen, folder, self._boot_timeout_s, self._password, made)
        except BaseException:
            self._end()
            if folder is not None and not is_stopped():
                template.doubt(folder)
            raise
        if folder is not None:
            template.trust(folder)
        origin = "booted" if folder is None else "cloned"
        logger.info("a machine was %s after %.2f s", origin, time.monotonic() - began)

    def _template(self, is_stopped: Callable[[], bool] = lambda: False) -> Path | None:
        """The folder to clone; None where a cold boot must do, which is said."""
        if not self._config.template:
            return None
        try:
            return template.ensure(
                self._config, self._image, self._screen, self._boot_timeout_s, self._password, is_stopped=is_stopped
            )
        except template.TemplateError as error:
            if is_stopped():
                raise DesktopBootError("the machine was stopped while it waited for a template") from error
            logger.warning("every desktop and every reset is a cold boot, of minutes: %s", error)
            return None
