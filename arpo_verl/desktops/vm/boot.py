"""This module starts a machine whose desktop shows: booted from an image, or cloned from a template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from arpo_verl.desktops.vm import guest
from arpo_verl.desktops.vm.config import VmConfig, own_folder
from arpo_verl.desktops.vm.image import Image
from arpo_verl.desktops.vm.machine import VirtualMachine, clone, cold
from arpo_verl.errors import DesktopBootError
from arpo_verl.types import Size

PASSWORD = "password"  # noqa: S105  public
"""Password of the user in OSWorld's machines."""
MANIFEST = "manifest.json"
"""Name of a template's manifest; see `template.seal`."""


def start(
    config: VmConfig,
    image: Image,
    screen: Size,
    folder: Path | None,
    timeout_s: float,
    password: str = PASSWORD,
    made: Callable[[VirtualMachine], object] = lambda machine: None,
) -> VirtualMachine:
    """Start a machine, and return it when its desktop shows.

    Args:
        folder: template to clone; None boots the image.
        password: password of the guest's user, for images without QEMU's agent.
        made: called with the machine at once; the start fails if the machine is closed after that.

    Raises:
        DesktopBootError: the machine did not come up; it was closed.
    """
    agent = folder is None or has_agent(folder)
    machine = VirtualMachine(
        config, image, screen, cold(config, image) if folder is None else clone(config, image, folder)
    )
    try:
        made(machine)
        if folder is not None:
            machine.migrate("migrate-incoming", "/template/state", timeout_s)
            machine.ask("cont")
            guest.resume(machine, timeout_s, None if agent else password)
        guest.await_desktop(machine, timeout_s)
    except BaseException:
        machine.close()
        raise
    return machine


def check_disk(config: VmConfig) -> None:
    """Check that the disk has room for all that a machine may write, so that a guest cannot fill the host's disk.

    Raises:
        DesktopBootError: the disk is too full.
    """
    own_folder(config.path)
    free_mib = shutil.disk_usage(config.path).free >> 20
    if free_mib < config.disk_mib:
        needed = f"a machine may write {config.disk_mib} MiB (environment.vm.disk_mib); make room"
        raise DesktopBootError(f"{config.path} has {free_mib} MiB free, but {needed}")


def has_agent(folder: Path) -> bool:
    """Return whether QEMU's agent answered in the machine that became the template.

    Raises:
        DesktopBootError: the template is gone.
    """
    try:
        return bool(json.loads((folder / MANIFEST).read_text())["agent"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DesktopBootError(f"the template in {folder} is gone: {error!r}") from error
