"""A machine that has booted, in a folder, for clones to start from: memory, device state, disk, and what made them.

QEMU calls it VM templating: the memory lies in a file that the booting machine shares and clones map privately, and the
saved state leaves it out (`x-ignore-shared`). A clone fits only the QEMU, the processor and the words that made its
template, so a manifest has all of them, and a template that differs is made again.

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
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from arpo_verl.errors import ArpoError, ConfigError, DesktopBootError, MissingDependencyError
from arpo_verl.files import replacing_directory, write_whole
from arpo_verl.types import Size
from arpo_verl.vm import guest
from arpo_verl.vm.boot import MANIFEST, PASSWORD, start
from arpo_verl.vm.config import VmConfig, own_folder
from arpo_verl.vm.image import FIRMWARE, Image, digest
from arpo_verl.vm.machine import VirtualMachine, for_template, hardware, require_files, version, which

logger = logging.getLogger(__name__)

OLDEST_QEMU = (8, 2)
"""The first that maps a template's memory from a file that it cannot write to."""
FORMAT = 1
FILES = ("memory", "state", "disk")
QUIET_S = 5.0
"""A machine is settled when it has shown the same for so long, and was at rest for most of it."""
BUSY = 0.2
"""Processors' time per time that counts as rest."""
SETTLE_TIMEOUT_S = 300.0
SAVE_TIMEOUT_S = 300.0
LOCK_TIMEOUT_S = 3600.0
LOCK_POLL_S = 0.2
DISK_MIB = 1024
"""What a boot may write to its disk, and the devices' state."""

MOST_FAILURES = 2
"""Clones in a row that do not start, of a template that is whole; then this process boots cold."""

_read: set[Path] = set()
"""Templates that this process has read whole."""
_failures: Counter[Path] = Counter()


class TemplateError(ArpoError, RuntimeError):
    """There can be no template here; machines boot cold."""


def folder_of(config: VmConfig, image: Image, screen: Size) -> Path:
    """Where a template of these lies."""
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
    """The folder of a template that fits, which is made where there is none; one process of a host makes it.

    Args:
        is_stopped: asked while another process makes it, whether to go on waiting for that.

    Raises:
        TemplateError: there can be none here, and why.
        DesktopBootError: the machine does not boot.
    """
    binary = which(config)
    if version(binary)[:2] < OLDEST_QEMU:
        found = ".".join(map(str, version(binary)))
        remedy = "name one by environment.vm.binary"
        raise TemplateError(f"templates need QEMU 8.2 or newer, and {binary} is {found}; {remedy}")
    folder = folder_of(config, image, screen)
    own_folder(config.path)
    own_folder(folder.parent)
    if why_unfit(config, image, screen, folder, read_files=folder not in _read):
        with _alone(folder, is_stopped) as lock:
            if reason := why_unfit(config, image, screen, folder):
                for left in set(folder.parent.glob(f".{folder.name}.*")) - {lock}:  # by one that was killed
                    shutil.rmtree(left)
                say(f"making a template in {folder}: {reason}")
                _make(config, image, screen, folder, boot_timeout_s, password, say)
        _failures.pop(folder, None)
    _read.add(folder)
    if _failures[folder] >= MOST_FAILURES:
        raise TemplateError(f"{MOST_FAILURES} clones in a row of {folder} did not start, and it is whole")
    return folder


@contextlib.contextmanager
def _alone(folder: Path, is_stopped: Callable[[], bool]) -> Iterator[Path]:
    """Let one process of this host in at a time; gives the lock's file."""
    lock = folder.with_name(f".{folder.name}.lock")
    held, deadline = FileLock(lock), time.monotonic() + LOCK_TIMEOUT_S
    while not held.is_locked:
        try:
            held.acquire(timeout=min(LOCK_POLL_S, LOCK_TIMEOUT_S))  # many a filelock has no `cancel_check`
        except Timeout as error:
            if is_stopped() or time.monotonic() >= deadline:
                raise TemplateError(f"another process has been making {folder} for {LOCK_TIMEOUT_S:g} s") from error
    try:
        yield lock
    finally:
        held.release()


def doubt(folder: Path) -> None:
    """A clone of it did not start: have `ensure` read the whole template again, and give it up after some in a row."""
    _read.discard(folder)
    _failures[folder] += 1


def trust(folder: Path) -> None:
    """A clone of it started."""
    _failures.pop(folder, None)


def why_unfit(
    config: VmConfig, image: Image, screen: Size, folder: Path, read_files: bool = True, read_image: bool = False
) -> str:
    """Why no clone can start from `folder`; empty where one can.

    Args:
        read_files: also read every byte of the template.
        read_image: also those of the image.

    Raises:
        TemplateError: it was tried, and there can be none; it is not made again.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        made_of, refused = dict(manifest["made_of"]), str(manifest["refused"])
        files = {name: (manifest["files"][name]["stat"], manifest["files"][name]["blake2b"]) for name in _names(image)}
        image_digests = manifest["image"]
    except FileNotFoundError:
        return "there is none yet"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its manifest cannot be read: {error!r}"
    expected = _made_of(config, image, screen)
    differing = [name for name in expected if made_of.get(name) != expected[name]]
    if differing:
        return f"it was made with another {', '.join(differing)}"
    if refused:
        raise TemplateError(f"{refused}; to try again, remove {folder}")
    for name, (status, content) in files.items():
        if _stat(folder / name) != status:
            return f"its file {name} was changed"
        try:
            if read_files and digest(folder / name) != content:
                return f"its file {name} is corrupt"
        except OSError as error:
            return f"its file {name} cannot be read: {error}"
    if read_image and _image_digests(image) != image_digests:
        return "the image was changed"
    return ""


def _made_of(config: VmConfig, image: Image, screen: Size) -> dict[str, Any]:
    """What a template fits, by its name in messages."""
    return {
        "format": FORMAT,
        "image": {place: _stat(path) for place, path in image.files.items()},
        "QEMU": [*version(which(config)), *_stat(which(config))],
        "machine": hardware(config, image, screen),
        "processor": _processor() if config.accelerator == "kvm" else "emulated",
    }


def _processor() -> list[str]:
    """Model, microcode, features, and the kernel, which chooses among them: a template boots with what it found, and
    goes on with it."""
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


def _image_digests(image: Image) -> dict[str, str]:
    return {place: digest(path) for place, path in image.files.items()}


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
    if free_mib < config.memory_mib + DISK_MIB:  # a full disk ends QEMU where its memory lies on it
        raise TemplateError(
            f"{folder.parent} has {free_mib} MiB free, and a template may take {config.memory_mib + DISK_MIB}"
        )
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
            refused = ""
            try:
                machine.migrate("migrate", "/template/state", SAVE_TIMEOUT_S)
            except DesktopBootError as error:
                if not machine.is_alive():  # as by a kill of the host's: another one may be saved
                    raise
                refused = f"this machine cannot be saved ({error})"
        finally:
            machine.close()
        if not refused:
            seal(config, image, screen, scratch, agent)
            try:
                start(config, image, screen, scratch, boot_timeout_s, password).close()
            except DesktopBootError as error:
                refused = f"no clone of it started ({error})"
        if refused:
            refuse(config, image, screen, scratch, refused)
    why_unfit(config, image, screen, folder, read_files=False)  # raises where it was refused
    say(f"the template is ready after {time.monotonic() - began:.1f} s")


def seal(config: VmConfig, image: Image, screen: Size, folder: Path, agent: bool) -> None:
    """Make the files of a machine that was saved a template: read-only, ours, with a manifest."""
    names = _names(image)
    owner = (os.geteuid(), os.getegid())
    os.chown(folder, *owner)
    folder.chmod(0o755)
    # QEMU owned it until now: its own user shall not choose what we give modes and owners to.
    found = {entry.name: entry.stat(follow_symlinks=False) for entry in os.scandir(folder)}
    if set(found) != set(names) or not all(stat.S_ISREG(one.st_mode) and one.st_nlink == 1 for one in found.values()):
        raise TemplateError(f"the machine left other files than a template's: {', '.join(sorted(found))}")
    for name in names:
        os.chown(folder / name, *owner, follow_symlinks=False)
        (folder / name).chmod(0o444)
    manifest = {
        "made_of": _made_of(config, image, screen),
        "image": _image_digests(image),
        "files": {name: {"stat": _stat(folder / name), "blake2b": digest(folder / name)} for name in names},
        "agent": agent,
        "refused": "",
    }
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")


def refuse(config: VmConfig, image: Image, screen: Size, folder: Path, reason: str) -> None:
    """Write down, in the place of a template's files, why there can be none: no process makes it again."""
    os.chown(folder, os.geteuid(), os.getegid())  # QEMU's until now
    for entry in os.scandir(folder):
        os.unlink(entry.path)
    manifest = {
        "made_of": _made_of(config, image, screen),
        "image": {},
        "files": {name: {"stat": [], "blake2b": ""} for name in _names(image)},
        "refused": reason,
    }
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")


def _names(image: Image) -> tuple[str, ...]:
    return (*FILES, "variables") if image.kernel is None else FILES


def _make_disk(image: Image, folder: Path) -> None:
    """The disk that the booting machine writes to; in its sandbox the image lies elsewhere, so it is not looked at."""
    try:
        looked = ["qemu-img", "info", "-f", "qcow2", "--output=json", str(image.disk)]
        told = subprocess.run(looked, capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise MissingDependencyError("qemu-img is not installed; run: apt-get install -y qemu-utils") from error
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"{image.disk} is no disk image that QEMU reads: {error.stderr.strip()[-500:]}") from error
    size = json.loads(told.stdout)["virtual-size"]
    layers = ["-f", "qcow2", "-u", "-b", "/image", "-F", "qcow2"]
    subprocess.run(["qemu-img", "create", "-q", *layers, str(folder / "disk"), str(size)], check=True)
    if image.kernel is None:
        shutil.copyfile(FIRMWARE[1], folder / "variables")


def await_settled(machine: VirtualMachine) -> None:
    """Wait until the desktop shows the same for a while and its processors rest; a screen that never does is taken as
    it is."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        if not machine.is_alive():
            raise DesktopBootError(f"the machine ended: {machine.why_gone()}")
        before, began = guest.screenshot(machine), machine.processor_s()
        time.sleep(QUIET_S)
        worked_s = machine.processor_s() - began  # before the next look, which is work too
        if before is not None and guest.screenshot(machine) == before and worked_s < BUSY * QUIET_S:
            return
    logger.warning("the desktop did not settle within %g s; the template is of what it was then", SETTLE_TIMEOUT_S)
