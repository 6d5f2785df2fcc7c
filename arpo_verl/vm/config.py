"""The recipe's section `environment.vm`."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from arpo_verl.config import check_fields, require, text, truth, whole
from arpo_verl.errors import ConfigError

ACCELERATORS = ("kvm", "tcg")


@dataclass(frozen=True)
class VmConfig:
    """A virtual machine of the provider `qemu`."""

    memory_mib: Annotated[int, whole(512)] = 4096
    """What the machine believes it has; OSWorld's have 4 GiB. Clones share what none of them has written to."""
    cpus: Annotated[int, whole(1)] = 4
    """Processors of the machine; OSWorld's have four."""
    accelerator: str = "kvm"
    """`kvm`, or `tcg`: QEMU's emulation, some ten times slower, where no virtual machine can run."""
    binary: Annotated[str, text("a program")] = "qemu-system-x86_64"
    """QEMU, by its name or path. Templates need 8.2 or newer."""
    folder: Annotated[str | None, text("a folder or null")] = None
    """Where templates are kept, as large as the machine's memory that its boot used, and what clones write to their
    disks; on a local disk. None: `$XDG_CACHE_HOME/arpo_verl/vm` (`~/.cache/...`)."""
    disk_mib: Annotated[int, whole(256)] = 8192
    """What a machine may write to its disk. One that writes more is ended, as its guest's own doing."""
    template: Annotated[bool, truth()] = True
    """False: every desktop, and every reset, is a cold boot."""

    def __post_init__(self) -> None:
        check_fields(self, "environment.vm")
        known = self.accelerator in ACCELERATORS
        require(known, "environment.vm.accelerator", f"one of {', '.join(ACCELERATORS)}", self.accelerator)

    @property
    def path(self) -> Path:
        """`folder`, or its default."""
        if self.folder is not None:
            return Path(self.folder).expanduser().absolute()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "arpo_verl", "vm")


def own_folder(path: Path) -> Path:
    """`path`, which is made where it is missing: what we start from must be nobody else's to change.

    Raises:
        ConfigError: it is no folder, another's, or others may write to it.
    """
    try:
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(f"environment.vm.folder: {path} cannot be a folder ({error}); name another") from error
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigError(
            f"environment.vm.folder: {path} must be a folder of this process's user that only the user may write to; "
            "name another, or remove this one"
        )
    return path
