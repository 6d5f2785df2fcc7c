"""The image of a virtual machine: OSWorld's disk image, or one that `arpo-verl vm build` made."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.errors import ConfigError

DISK, KERNEL, INITRD, MANIFEST = "disk.qcow2", "vmlinuz", "initrd.img", "image.json"
FIRMWARE = (Path("/usr/share/OVMF/OVMF_CODE_4M.fd"), Path("/usr/share/OVMF/OVMF_VARS_4M.fd"))
"""UEFI's code and its empty variables, from Debian's and Ubuntu's package `ovmf`."""
_MAGIC = b"QFI\xfb"
_DATA_FILE = 4
"""Bit in the last byte of a header's incompatible features."""


@dataclass(frozen=True)
class Image:
    """An image is a set of files that no machine ever writes to."""

    disk: Path
    """The disk, a .qcow2 file without a backing file."""
    kernel: Path | None = None
    """Kernel that QEMU starts, which saves a boot loader; None for OSWorld's image, which boots by UEFI."""
    initrd: Path | None = None

    @classmethod
    def at(cls, path: str | Path) -> Image:
        """Return the image whose disk is the file `path`.

        Raises:
            ConfigError: `path` is not a disk image that is whole by itself.
        """
        disk = Path(path).expanduser().absolute()
        try:
            with disk.open("rb") as file:
                header = file.read(80)
        except OSError as error:
            raise ConfigError(f"environment.path_to_vm must be the machine's .qcow2 file: {error}") from error
        if header[:4] != _MAGIC:
            raise ConfigError(f"environment.path_to_vm must be a .qcow2 file, but {disk} is not one")
        if any(header[8:16]):  # the backing file could be any file of this host
            raise ConfigError(f"{disk} has a backing file; make it whole: qemu-img convert -O qcow2 {disk} WHOLE.qcow2")
        if header[4:8] >= b"\0\0\0\3" and len(header) == 80 and header[79] & _DATA_FILE:
            raise ConfigError(f"{disk} keeps its data in another file; make it whole: qemu-img convert -O qcow2 ...")
        if not all(disk.with_name(name).is_file() for name in (MANIFEST, KERNEL, INITRD)):
            return cls(disk)
        return cls(disk, disk.with_name(KERNEL), disk.with_name(INITRD))

    @property
    def files(self) -> dict[str, Path]:
        """Return the image's files by their places in the machine's sandbox."""
        if self.kernel is None or self.initrd is None:
            code, variables = FIRMWARE
            return {"/image": self.disk, "/firmware": code, "/variables": variables}
        return {"/image": self.disk, "/kernel": self.kernel, "/initrd": self.initrd}


def digest(path: Path) -> str:
    """Return a hash of a file's bytes."""
    state = hashlib.blake2b(digest_size=32)
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            state.update(block)
    return state.hexdigest()
