"""A template is a folder with a booted machine that clones start from: memory, device state, disk and a manifest.

QEMU calls this VM templating: the memory lies in a file that the booting machine shares and clones map privately, and
the saved state leaves it out (`x-ignore-shared`). A clone needs the same QEMU, processor and arguments as its template.
So the manifest has all of them, and a template that differs is made again.

Source: QEMU's docs/system/vm-templating.rst.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from arpo_verl.desktops.config import VmConfig
from arpo_verl.desktops.vm import guest
from arpo_verl.desktops.vm.image import FIRMWARE, Image, digest
from arpo_verl.desktops.vm.machine import (
    VirtualMachine,
    clone,
    cold,
    for_template,
    hardware,
    own_folder,
    require_files,
    version,
    which,
)
from arpo_verl.errors import ConfigError, DesktopBootError, MissingDependencyError
from arpo_verl.lib.files import replacing_directory, write_whole
from arpo_verl.types import Size

logger = logging.getLogger(__name__)

OLDEST_QEMU = (8, 2)
"""The first version that maps a template's memory from a read-only file."""
PASSWORD = "password"  # noqa: S105  public
"""Password of the user in OSWorld's machines."""
MANIFEST = "manifest.json"
FORMAT = 1
FILES = ("memory", "state", "disk")
COLD = "environment.vm.template=false boots every desktop cold, which takes minutes"
QUIET_S = 5.0
"""A machine has settled when its screen stayed the same for so long, while its processors were mostly idle."""
BUSY = 0.2
"""Processor time per second below which a machine is idle."""
SETTLE_TIMEOUT_S = 300.0
SAVE_TIMEOUT_S = 300.0
LOCK_TIMEOUT_S = 3600.0
LOCK_POLL_S = 0.2
DISK_MIB = 1024
"""Room for a boot's writes to its disk, and for the devices' state."""

_read: set[Path] = set()
"""Templates that this process has read and found whole."""


def folder_of(config: VmConfig, image: Image, screen: Size) -> Path:
    """Return the folder of the template for these options, image and screen."""
    shape = [str(image.disk), list(screen), config.memory_mib, config.cpus, config.accelerator]
    return config.path / "templates" / hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]


def ensure(
    config: VmConfig,
    image: Image,
    screen: Size,
    boot_timeout_s: float,
    password: str = PASSWORD,
    say: Callable[[str], object] = logger.warning,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Path:
    """Return the folder of a template that fits; if there is none, one process of the host makes it.

    Args:
        is_stopped: asked while another process makes the template; True ends the wait.

    Raises:
        ConfigError: there can be no template here.
        DesktopBootError: the machine does not boot, or the wait took too long.
    """
    binary = which(config)
    if version(binary)[:2] < OLDEST_QEMU:
        found = ".".join(map(str, version(binary)))
        remedy = f"name one by environment.vm.binary, or {COLD}"
        raise ConfigError(f"templates need QEMU 8.2 or newer, but {binary} is {found}; {remedy}")
    folder = folder_of(config, image, screen)
    own_folder(config.path)
    own_folder(folder.parent)
    if why_unfit(config, image, screen, folder, read_files=folder not in _read):
        with _alone(folder, is_stopped) as lock:
            if reason := why_unfit(config, image, screen, folder):
                for left in set(folder.parent.glob(f".{folder.name}.*")) - {lock}:  # left by a killed process
                    shutil.rmtree(left)
                say(f"making a template in {folder}: {reason}")
                _make(config, image, screen, folder, boot_timeout_s, password, say)
    _read.add(folder)
    return folder


@contextlib.contextmanager
def _alone(folder: Path, is_stopped: Callable[[], bool]) -> Iterator[Path]:
    """Let one process of this host in at a time, and yield the lock's file."""
    lock = folder.with_name(f".{folder.name}.lock")
    held, deadline = FileLock(lock), time.monotonic() + LOCK_TIMEOUT_S
    while not held.is_locked:
        try:
            held.acquire(timeout=min(LOCK_POLL_S, LOCK_TIMEOUT_S))  # older filelocks have no `cancel_check`
        except Timeout as error:
            if is_stopped():
                raise DesktopBootError("the machine was stopped while it waited for a template") from error
            if time.monotonic() >= deadline:
                raise DesktopBootError(f"another process has been making {folder} for {LOCK_TIMEOUT_S:g} s") from error
    try:
        yield lock
    finally:
        held.release()


def doubt(folder: Path) -> None:
    """Let `ensure` read a template's files again, since a clone of it did not start."""
    _read.discard(folder)


def why_unfit(config: VmConfig, image: Image, screen: Size, folder: Path, read_files: bool = True) -> str:
    """Return why no clone can start from `folder`; empty if one can.

    Args:
        read_files: also check every byte of the template.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        made_of = dict(manifest["made_of"])
        files = {name: (manifest["files"][name]["stat"], manifest["files"][name]["blake2b"]) for name in _names(image)}
    except FileNotFoundError:
        return "there is none yet"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its manifest cannot be read: {error!r}"
    expected = _made_of(config, image, screen)
    differing = [name for name in expected if made_of.get(name) != expected[name]]
    if differing:
        return f"it was made with another {', '.join(differing)}"
    for name, (status, content) in files.items():
        if _stat(folder / name) != status:
            return f"its file {name} was changed"
        try:
            if read_files and digest(folder / name) != content:
                return f"its file {name} is corrupt"
        except OSError as error:
            return f"its file {name} cannot be read: {error}"
    return ""


def _made_of(config: VmConfig, image: Image, screen: Size) -> dict[str, Any]:
    """Return all that a template depends on, by its name in messages."""
    return {
        "format": FORMAT,
        "image": {place: _stat(path) for place, path in image.files.items()},
        "QEMU": [*version(which(config)), *_stat(which(config))],
        "machine": hardware(config, image, screen),
        "processor": _processor() if config.accelerator == "kvm" else "emulated",
    }


def _processor() -> list[str]:
    """Return the processor's model, microcode and features, and the kernel, which chooses among the features: a
    template found these at its boot, and its clones go on with them."""
    with open("/proc/cpuinfo") as file:
        lines = [line.split(":", 1) for line in file.read().split("\n\n", 1)[0].splitlines()]
    wanted = ("model name", "stepping", "microcode", "flags")
    return [platform.release(), *(value.strip() for name, value in lines if name.strip() in wanted)]


def _stat(path: Path) -> list[int]:
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def _make(
    config: VmConfig,
    image: Image,
    screen: Size,
    folder: Path,
    boot_timeout_s: float,
    password: str,
    say: Callable[[str], object],
) -> None:
    began = time.monotonic()
    require_files(image.files.values())
    free_mib = shutil.disk_usage(folder.parent).free >> 20
    if free_mib < config.memory_mib + DISK_MIB:  # a full disk would end QEMU, whose memory lies on it
        needed = f"a template may take {config.memory_mib + DISK_MIB}; make room"
        raise DesktopBootError(f"{folder.parent} has {free_mib} MiB free, but {needed}")
    with replacing_directory(folder) as scratch:
        _make_disk(image, scratch)
        machine = VirtualMachine(config, image, screen, for_template(config, image, scratch))
        try:
            guest.await_desktop(machine, boot_timeout_s)
            say(f"booted after {time.monotonic() - began:.1f} s")
            await_settled(machine)
            say(f"settled after {time.monotonic() - began:.1f} s")
            agent = guest.has_agent(machine)
            machine.ask("stop")
            try:
                machine.migrate("migrate", "/template/state", SAVE_TIMEOUT_S)
            except DesktopBootError as error:
                if not machine.is_alive():  # as if the host killed it: another machine may be savable
                    raise
                raise ConfigError(f"a machine of {image.disk} cannot be saved ({error}); {COLD}") from error
        finally:
            machine.close()
        seal(config, image, screen, scratch, agent)
        try:
            start(config, image, screen, scratch, boot_timeout_s, password).close()
        except DesktopBootError as error:
            raise ConfigError(f"no clone of {image.disk} started ({error}); {COLD}") from error
    say(f"the template is ready after {time.monotonic() - began:.1f} s")


def seal(config: VmConfig, image: Image, screen: Size, folder: Path, agent: bool) -> None:
    """Make a saved machine's files a template: read-only, owned by us, with a manifest."""
    names = _names(image)
    owner = (os.geteuid(), os.getegid())
    os.chown(folder, *owner)
    folder.chmod(0o755)
    # QEMU's user owned the folder until now, and must not choose the files whose modes and owners we set.
    found = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(folder)}
    if set(found) != set(names) or not all(stat.S_ISREG(one.st_mode) and one.st_nlink == 1 for one in found.values()):
        raise DesktopBootError(f"the machine left other files than a template's: {', '.join(sorted(found))}")
    for name in names:
        os.chown(folder / name, *owner, follow_symlinks=False)
        (folder / name).chmod(0o444)
    manifest = {
        "made_of": _made_of(config, image, screen),
        "files": {name: {"stat": _stat(folder / name), "blake2b": digest(folder / name)} for name in names},
        "agent": agent,
    }
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")


def _names(image: Image) -> tuple[str, ...]:
    return (*FILES, "variables") if image.kernel is None else FILES


def _make_disk(image: Image, folder: Path) -> None:
    """Make the disk for the booting machine. Its backing file is unchecked: the image's path differs in the sandbox."""
    try:
        looked = ["qemu-img", "info", "-f", "qcow2", "--output=json", str(image.disk)]
        told = subprocess.run(looked, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise MissingDependencyError("qemu-img is not installed; run: apt-get install -y qemu-utils") from error
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"QEMU cannot read the disk image {image.disk}: {error.stderr.strip()[-500:]}") from error
    size = json.loads(told.stdout)["virtual-size"]
    layers = ["-f", "qcow2", "-u", "-b", "/image", "-F", "qcow2"]
    subprocess.run(["qemu-img", "create", "-q", *layers, str(folder / "disk"), str(size)], check=True)
    if image.kernel is None:
        shutil.copyfile(FIRMWARE[1], folder / "variables")


def await_settled(machine: VirtualMachine) -> None:
    """Wait until the screen stays the same for a while and the processors are idle, or at most `SETTLE_TIMEOUT_S`."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        if not machine.is_alive():
            raise DesktopBootError(f"the machine ended: {machine.why_gone()}")
        before, began = guest.screenshot(machine), machine.processor_s()
        time.sleep(QUIET_S)
        worked_s = machine.processor_s() - began  # before the next screenshot, which takes time too
        if before is not None and guest.screenshot(machine) == before and worked_s < BUSY * QUIET_S:
            return
    logger.warning("the desktop did not settle within %g s; the template is saved as it is", SETTLE_TIMEOUT_S)


# --- Clones ----------------------------------------------------------------------------------------------------------


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
    agent = folder is None or _has_agent(folder)
    origin = cold(config, image) if folder is None else clone(config, image, folder)
    machine = VirtualMachine(config, image, screen, origin)
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


def _has_agent(folder: Path) -> bool:
    """Return whether QEMU's agent answered in the machine that became the template."""
    try:
        return bool(json.loads((folder / MANIFEST).read_text())["agent"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DesktopBootError(f"the template in {folder} is gone: {error!r}") from error
