"""QEMU and an image for the tests that boot virtual machines; both are kept in `.cache`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from arpo_verl.desktops.config import VmConfig
from arpo_verl.desktops.embedded import packages, sandbox
from arpo_verl.desktops.vm import build, machine, template
from arpo_verl.desktops.vm.image import DISK, Image
from arpo_verl.types import Size, Task
from support import ROOT

TEMPLATES = ROOT / ".cache" / "vm"
SCREEN = Size(640, 480)
BOOT_TIMEOUT_S = 1200.0
NAME = "qemu-system-x86_64"
BACKPORTS = """\
Types: deb
URIs: http://deb.debian.org/debian
Suites: bookworm bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""
QEMU_PACKAGES = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "qemu-utils", "seabios")


def why_not() -> str:
    """Why no machine can be made here; empty where one can."""
    missing = packages.missing_packages({"bubblewrap": "bwrap", **packages.VM})
    return f"not installed: {', '.join(missing)}; run: {packages.install_command(missing)}" if missing else ""


def qemu() -> str:
    """A QEMU that knows templates: the installed one, or Debian 12's backport, which is fetched and not installed.

    Raises:
        subprocess.CalledProcessError: apt cannot fetch it.
    """
    if machine.version(machine.which(VmConfig())) >= template.OLDEST_QEMU:
        return NAME
    folder = ROOT / ".cache" / "qemu"
    if not folder.is_dir():
        made = folder.with_suffix(".new")
        shutil.rmtree(made, ignore_errors=True)
        (made / "lists" / "partial").mkdir(parents=True)
        (made / "debian.sources").write_text(BACKPORTS)
        places = {"Etc::SourceList": made / "debian.sources", "Etc::SourceParts": "-", "State::Lists": made / "lists"}
        options = [word for name, place in places.items() for word in ("-o", f"Dir::{name}={place}")]
        apt = ["apt-get", "--quiet", *options]
        subprocess.run([*apt, "update"], check=True, capture_output=True)
        wanted = [f"{name}/bookworm-backports" for name in QEMU_PACKAGES]
        subprocess.run([*apt, "download", *wanted, "ipxe-qemu"], check=True, capture_output=True, cwd=made)
        for package in made.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, made], check=True)
            package.unlink()
        made.rename(folder)
    return str(folder / "usr" / "bin" / NAME)


def image() -> Image:
    """An image with the embedded suite's programs, built when what it is made of has changed.

    Raises:
        BuildError: Debian's packages cannot be had.
    """
    folder = ROOT / ".cache" / f"vm-image-{_key()}"
    if not folder.is_dir():
        for other in (*folder.parent.glob("vm-image-*"), TEMPLATES):
            shutil.rmtree(other, ignore_errors=True)
        build.build(folder)
    return Image.at(folder / DISK)


def sandboxes(folder: Path = TEMPLATES) -> set[int]:
    """Process ids of the sandboxes of machines whose `vm.folder` this is, with which their QEMU ends."""
    scratch = os.fsencode(folder / "writable")
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if scratch in path.read_bytes():
                found.add(int(path.parent.name))
    return found


def patient(task: Task) -> Task:
    """Its set-up waits ten times as long for windows: an emulated program starts slowly, on a busy host for minutes."""
    spec = copy.deepcopy(dict(task.spec))
    for step in spec["config"]:
        if "max_wait_time" in step["parameters"]:
            step["parameters"]["max_wait_time"] *= 10
    return dataclasses.replace(task, spec=spec)


def _key() -> str:
    names = " ".join(build.package_names(osworld=False))
    state = hashlib.sha256(Path(build.__file__).read_bytes() + names.encode())
    for path in sorted(sandbox.GUEST.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            state.update(os.fsencode(path.relative_to(sandbox.GUEST)) + path.read_bytes())
    return state.hexdigest()[:16]
