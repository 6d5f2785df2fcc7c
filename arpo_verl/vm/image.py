"""What a virtual machine starts from: OSWorld's disk image, or one that `arpo-verl vm build` made."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.errors import ConfigError

DISK, KERNEL, INITRD, MANIFEST = "disk.qcow2", "vmlinuz", "initrd.img", "image.json"
FIRMWARE = (Path("/usr/share/OVMF/OVMF_CODE_4M.fd"), Path("/usr/share/OVMF/OVMF_VARS_4M.fd"))
"""UEFI's code and its empty variables, of Debian's and Ubuntu's package `ovmf`."""
_MAGIC = b"QFI\xfb"
_DATA_FILE = 4
"""Of the last byte of a header's incompatible features."""


@dataclass(frozen=True)
class Image:
    """Files that no machine ever writes to."""

    disk: Path
    """A .qcow2 file without a backing file."""
    kernel: Path | None = None
    """One of ours is started by its kernel, which saves a boot loader; OSWorld's boots itself by UEFI."""
    initrd: Path | None = None

    @classmethod
    def at(cls, path: str | Path) -> Image:
        """The image whose disk is the file `path`.

        Raises:
            ConfigError: it is none.
        """
        disk = Path(path).expanduser().absolute()
        try:
            with disk.open("rb") as file:
                header = file.read(80)
        except OSError as error:
            raise ConfigError(f"environment.path_to_vm must be a .qcow2 file of the machine: {error}") from error
        if header[:4] != _MAGIC:
            raise ConfigError(f"environment.path_to_vm must be a .qcow2 file, and {disk} is none")
        if any(header[8:16]):  # it could name any file of this machine
            raise ConfigError(f"{disk} has a backing file; make it whole: qemu-img convert -O qcow2 {disk} WHOLE.qcow2")
        if header[4:8] >= b"\0\0\0\3" and len(header) == 80 and header[79] & _DATA_FILE:
            raise ConfigError(f"{disk} keeps its data in another file; make it whole: qemu-img convert -O qcow2 ...")
        if not all(disk.with_name(name).is_file() for name in (MANIFEST, KERNEL, INITRD)):
            return cls(disk)
        return cls(disk, disk.with_name(KERNEL), disk.with_name(INITRD))

    @property
    def files(self) -> dict[str, Path]:
        """Every file of it, by its place in the machine's sandbox."""
        if self.kernel is None or self.initrd is None:
            code, variables = FIRMWARE
            return {"/image": self.disk, "/firmware": code, "/variables": variables}
        return {"/image": self.disk, "/kernel": self.kernel, "/initrd": self.initrd}


def digest(path: Path) -> str:
    """A hash of a file's bytes."""
    state = hashlib.blake2b(digest_size=32)
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            state.update(block)
    return state.hexdigest()
