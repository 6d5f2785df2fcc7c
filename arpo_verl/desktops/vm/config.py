"""This module has the recipe's section `environment.vm`."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import check_fields, require, text, truth, whole

ACCELERATORS = ("kvm", "tcg")


@dataclass(frozen=True)
class VmConfig:
    """These are the options of the provider `qemu`'s virtual machines."""

    memory_mib: Annotated[int, whole(512)] = 4096
    """Memory of the guest; OSWorld's have 4 GiB. Clones share the pages that they have not written to."""
    cpus: Annotated[int, whole(1)] = 4
    """Processors of the guest; OSWorld's have four."""
    accelerator: str = "kvm"
    """`kvm`, or `tcg`, QEMU's emulation, some ten times slower, for hosts without KVM."""
    binary: Annotated[str, text("a program")] = "qemu-system-x86_64"
    """QEMU, by its name or path. Templates need 8.2 or newer."""
    folder: Annotated[str | None, text("a folder or null")] = None
    """Folder on a local disk for templates, each as large as the memory that its boot used, and for clones' disk
    writes. None means `$XDG_CACHE_HOME/arpo_verl/vm` (`~/.cache/...`)."""
    disk_mib: Annotated[int, whole(256)] = 8192
    """Most that a machine may write to its disk. A machine that writes more is ended, as its guest's own doing."""
    template: Annotated[bool, truth()] = True
    """Whether machines are clones of a template; False boots every desktop and every reset cold."""

    def __post_init__(self) -> None:
        check_fields(self, "environment.vm")
        known = self.accelerator in ACCELERATORS
        require(known, "environment.vm.accelerator", f"one of {', '.join(ACCELERATORS)}", self.accelerator)

    @property
    def path(self) -> Path:
        """Return `folder`, or its default."""
        if self.folder is not None:
            return Path(self.folder).expanduser().absolute()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "arpo_verl", "vm")


def own_folder(path: Path) -> Path:
    """Make the folder `path` if it is missing, and return it. No other user may change what machines start from.

    Raises:
        ConfigError: `path` is no folder, belongs to another user, or others may write to it.
    """
    try:
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(f"environment.vm.folder: cannot make the folder {path} ({error}); name another") from error
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigError(
            f"environment.vm.folder: {path} must be a folder that belongs to this process's user and that only this "
            "user may write to; name another, or remove this one"
        )
    return path
