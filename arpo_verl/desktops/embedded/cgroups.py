"""Limits of a desktop's memory, processors and process ids, by cgroups of version 2 or 1.

Each desktop has its own group in every hierarchy that offers one of the three. All are in one group `arpo_verl`, so
that the kernel divides processors among desktops first, then among programs: 300 busy loops in one desktop use that
desktop's share. That group is in this process's own group, or above it if version 2 forbids groups beside processes.

A group is locked by its owner, and has the owner's name. When the owner is killed, `reaper` removes its groups. If one
is left, its lock is free, and the next desktop that starts removes it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from arpo_verl.lib import reaper
from arpo_verl.lib.file_lock import FileLock, LockedError

logger = logging.getLogger(__name__)

MEMORY, CPU, PIDS = CONTROLLERS = ("memory", "cpu", "pids")
ALL_DESKTOPS = "arpo_verl"
END_TIMEOUT_S = 5.0
MIB = 1 << 20
_PERIOD_US = 100_000  # the kernel's own


@dataclass(frozen=True)
class Limits:
    """One desktop's limits."""

    memory_mib: int = 4096
    """Memory of programs, files in memory and the kernel for both. OSWorld's machines have 4 GiB. It is a limit, not a
    reservation: an idle desktop takes 55 MiB, one with a browser or an office document up to 1 GiB."""
    cpus: float | None = 4.0
    """Processors: OSWorld's machines have four. None: as much as is free."""
    pids: int = 1024
    """Processes and threads. A browser with ten pages has 300."""


DEFAULTS = Limits()


class Parent(NamedTuple):
    """A group in which we can make groups with these controllers."""

    folder: Path
    version: int
    controllers: tuple[str, ...]


class Cgroup:
    """The groups of one desktop; none if the machine offers none, see `parents`."""

    def __init__(self, limits: Limits, offered: Sequence[Parent] | None = None):
        """Make the groups, and remove those of dead owners."""
        self._locks: list[FileLock] = []
        self.parents: list[Parent] = []
        """The parents of this desktop's groups, in the order of `folders`."""
        self.folders: list[Path] = []
        for parent in parents() if offered is None else offered:
            sweep(parent)
            try:
                self._make(parent, limits)
            except OSError as error:
                logger.warning("a desktop goes without limits on its %s: %s", ", ".join(parent.controllers), error)

    def _make(self, parent: Parent, limits: Limits) -> None:
        folder, lock = _make_locked(parent)
        try:
            for name, value in _settings(parent, limits):
                _write(folder / name, value)
        except OSError:
            os.rmdir(folder)
            lock.close()
            raise
        self.parents.append(parent)
        self.folders.append(folder)
        self._locks.append(lock)

    @property
    def controllers(self) -> set[str]:
        """The resources that the groups limit."""
        return {controller for parent in self.parents for controller in parent.controllers}

    @property
    def doors(self) -> list[Path]:
        """The files by which a process enters the groups: it writes 0 to each."""
        return [folder / "cgroup.procs" for folder in self.folders]

    def admit(self, pid: int) -> None:
        """Move a process into the groups, and with it what it starts from now on.

        Raises:
            OSError: the process is gone.
        """
        for door in self.doors:
            _write(door, str(pid))

    def oom_kills(self) -> int:
        """Return how many programs were killed so far for lack of memory; 0 if the kernel does not count them."""
        files = ("memory.oom_control", "memory.events")  # of version 1 and 2
        return sum(_count(folder / file, "oom_kill") for folder in self.folders for file in files)

    def memory_met(self) -> int:
        """Return how often `memory_mib` was reached; in version 1 only whether it was, since `forget_peak`.

        `oom_kills` cannot replace it: that also counts programs killed because a group above, or the machine, was full.
        """
        met = 0
        for folder in self.folders:
            met += _count(folder / "memory.events", "oom")
            with contextlib.suppress(OSError):
                peak, limit = (int((folder / f"memory.{name}_in_bytes").read_text()) for name in ("max_usage", "limit"))
                met += peak > limit - MIB
        return met

    def forget_peak(self) -> None:
        """Reset version 1's highest use of memory."""
        for folder in self.folders:
            with contextlib.suppress(OSError):
                _write(folder / "memory.max_usage_in_bytes", "0")

    def close(self) -> None:
        """Kill what is left in the groups and remove them. Safe to call twice."""
        for folder in self.folders:
            _remove(folder)
        self.forget()

    def forget(self) -> None:
        """Forget the groups and their locks in a fork: they belong to the other process."""
        for lock in self._locks:
            lock.close()
        self.folders, self.parents, self._locks = [], [], []


def parents(process: Path = Path("/proc/self")) -> list[Parent]:
    """Return where we can make groups for desktops, each controller once; empty if the machine offers none to us.

    `process` is the folder under /proc of the process whose groups count.
    """
    paths: dict[str, str] = {}
    for line in (process / "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        paths |= dict.fromkeys(names.split(","), path)
    found, missing = [], list(CONTROLLERS)
    for version, mounted, controllers, folder in _mounts(process, paths):
        if version == 1:
            offered = tuple(name for name in controllers if name in missing) if _is_ours(folder) else ()
        else:
            folder, offered = _best(folder, mounted, missing)
        if offered:
            found.append(Parent(folder, version, offered))
            missing = [name for name in missing if name not in offered]
    return found


def _mounts(process: Path, paths: dict[str, str]) -> Iterable[tuple[int, Path, list[str], Path]]:
    """Yield each mounted hierarchy's version, place and controllers, and the process's own folder there."""
    for line in (process / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, mounted = before.split()[3:5]
        place = Path(mounted.replace("\\040", " "))
        controllers = [name for name in options.split(",") if name in CONTROLLERS]
        path = paths.get(controllers[0] if controllers else "", "/")
        inside = path.removeprefix(root.rstrip("/")) if path.startswith(root.rstrip("/") + "/") else "/"
        folder = place if ".." in inside else place / inside.lstrip("/")
        yield (2 if kind == "cgroup2" else 1), place, controllers, folder


def _best(group: Path, mounted: Path, missing: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    """Return the nearest group, at or above our own, that gives its children most of the controllers.

    A group of version 2 has processes or gives controllers to children, not both. So ours gives none, but its parent
    may. This rule does not hold for the root, which has no `cgroup.type`. It changes nothing else.
    """
    best: tuple[Path, tuple[str, ...]] = (group, ())
    for folder in (group, *group.parents):
        with contextlib.suppress(OSError):
            is_root = not (folder / "cgroup.type").exists()
            given = (folder / ("cgroup.controllers" if is_root else "cgroup.subtree_control")).read_text().split()
            offered = tuple(name for name in missing if name in given)
            is_domain = is_root or (folder / "cgroup.type").read_text().strip() == "domain"
            if is_domain and len(offered) > len(best[1]) and _is_ours(folder):
                best = folder, offered
        if folder == mounted:
            break
    return best


def _is_ours(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def sweep(parent: Parent) -> None:
    """Remove the groups of dead owners."""
    with contextlib.suppress(FileNotFoundError):
        for entry in list(os.scandir(parent.folder / ALL_DESKTOPS)):
            if entry.is_dir(follow_symlinks=False) and (lock := _lock(Path(entry.path))) is not None:
                _remove(Path(entry.path))
                lock.close()


_names: dict[int, str] = {}


def _own_name() -> str:
    """Return a name for this process only, not for its forks."""
    return _names.setdefault(os.getpid(), secrets.token_hex(8))


def _make_locked(parent: Parent) -> tuple[Path, FileLock]:
    """Make a new group and its lock; make another if someone's sweep removes it before it is locked."""
    everyone = parent.folder / ALL_DESKTOPS
    for _ in range(10):
        folder = everyone / f"{_own_name()}-{secrets.token_hex(8)}"
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(everyone)
            _share(everyone, parent)
            os.mkdir(folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # the last desktop's end removed `everyone`
                raise
            continue
        reaper.remove_groups_at_end(everyone / _own_name())
        if (lock := _lock(folder)) is not None:
            return folder, lock
    raise OSError(errno.EAGAIN, "new groups vanish before they can be locked", str(everyone))


def _share(everyone: Path, parent: Parent) -> None:
    """Pass on the controllers, and give all desktops together the processor share of one busy neighbour.

    In version 1 a neighbour may be a single process, as ours are if no group was made. So there the share is that of
    such a process on each processor.
    """
    if parent.version == 2:
        for folder in (parent.folder, everyone):
            given = (folder / "cgroup.subtree_control").read_text().split()
            for name in parent.controllers:
                if name not in given:
                    _write(folder / "cgroup.subtree_control", f"+{name}")
    elif CPU in parent.controllers:
        _write(everyone / "cpu.shares", str(1024 * (os.cpu_count() or 1)))


def _settings(parent: Parent, limits: Limits) -> Iterable[tuple[str, str]]:
    """Yield the files of a desktop's group, and what to write to each."""
    bytes_, quota = str(limits.memory_mib * MIB), None if limits.cpus is None else int(limits.cpus * _PERIOD_US)
    if MEMORY in parent.controllers:
        yield ("memory.max" if parent.version == 2 else "memory.limit_in_bytes"), bytes_
        # The limit allows no swap; not every kernel counts it.
        swap = "memory.swap.max" if parent.version == 2 else "memory.memsw.limit_in_bytes"
        if (parent.folder / ALL_DESKTOPS / swap).exists():
            yield swap, "0" if parent.version == 2 else bytes_
    if CPU in parent.controllers and quota is not None:
        if parent.version == 2:
            yield "cpu.max", f"{quota} {_PERIOD_US}"
        else:
            yield "cpu.cfs_period_us", str(_PERIOD_US)
            yield "cpu.cfs_quota_us", str(quota)
    if PIDS in parent.controllers:
        yield "pids.max", str(limits.pids)


def _lock(folder: Path) -> FileLock | None:
    """Lock a group; None if its owner has the lock, or the group is gone."""
    try:
        return FileLock(folder, create=False)
    except (LockedError, FileNotFoundError):
        return None


def _remove(folder: Path) -> None:
    """Kill what runs in a group until it is empty, and remove it; after the last one, remove the group of all too."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while folder.is_dir():
        try:
            os.rmdir(folder)
        except OSError as error:
            if time.monotonic() > deadline:
                logger.warning("cannot remove the group %s of a desktop that ended: %s", folder, error)
                return
            _kill_all(folder)
            time.sleep(0.01)
    with contextlib.suppress(OSError):
        os.rmdir(folder.parent)


def _kill_all(folder: Path) -> None:
    with contextlib.suppress(OSError):
        _write(folder / "cgroup.kill", "1")  # of version 2
    with contextlib.suppress(OSError):
        for pid in map(int, (folder / "cgroup.procs").read_text().split()):
            if pid > 0:  # 0 is one of another process namespace
                os.kill(pid, signal.SIGKILL)


def _count(file: Path, name: str) -> int:
    """Return the number of a name in a group's file; 0 if it is not there."""
    with contextlib.suppress(OSError):
        return int(dict(line.split() for line in file.read_text().splitlines()).get(name, 0))
    return 0


def _write(path: Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY)  # creates none
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
