"""Write files and folders so that they exist completely or not at all, whatever kills the process or the machine.

Two places write differently on purpose. `live.json` is overwritten in place (`records/episode_folder.py`). A download
is written to a name that contains its host's, so that the next attempt overwrites what a killed one left
(`desktops/osworld/task_files.py`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from arpo_verl.errors import ConfigError
from arpo_verl.lib import reaper
from arpo_verl.lib.file_lock import FileLock, LockedError

logger = logging.getLogger(__name__)

PART_PREFIX = ".part-"
"""Prefix of what an interrupted write leaves behind."""

_CHUNK_BYTES = 1 << 20
_LOCK = ".in-use"
_TRIES = 20


# --- What the system refuses -----------------------------------------------------------------------------------------

_REFUSALS = {
    errno.EACCES: "you may not use {}; name another place, or change who may use it",
    errno.EPERM: "you may not use {}; name another place, or change who may use it",
    errno.EROFS: "the disk of {} is read-only; name another place",
    errno.ENOSPC: "the disk of {} is full; free some space, then run the same command again",
    errno.EDQUOT: "your share of the disk of {} is used up; free some space, then run the same command again",
    errno.ENOENT: "there is no {}; check the path",
    errno.EEXIST: "{} exists already; remove it, or name another place",
    errno.ENOTDIR: "{} is a file or leads through one, where a folder is needed; name another place",
    errno.EISDIR: "{} is a folder, where a file is needed; name another place",
    errno.ENAMETOOLONG: "the name {} is too long; choose a shorter one",
}
FULL = (errno.ENOSPC, errno.EDQUOT)


def explain_refusal(error: OSError) -> str:
    """Explain in one sentence what the file system refused, and what to do."""
    number = error.errno or 0
    if number == errno.EEXIST and os.path.isfile(error.filename or ""):
        number = errno.ENOTDIR  # a folder was needed there
    told = _REFUSALS.get(number)
    if told is None or (error.filename is None and error.errno not in FULL):
        return str(error)
    return told.format(error.filename if error.filename is not None else "a file that was being written")


def check_place(name: str, folder: Path) -> None:
    """Refuse a folder that this user could not create or write to. Nothing is created.

    Args:
        name: the option that names the folder, for the message.

    Raises:
        ConfigError: the message names the folder that is in the way.
    """
    there = next(str(path) for path in (folder.absolute(), *folder.absolute().parents) if os.path.exists(path))
    what = None
    if not os.path.isdir(there):
        what = f"{there} is a file"
    elif os.statvfs(there).f_flag & os.ST_RDONLY:
        what = f"the disk of {there} is read-only"
    elif not os.access(there, os.W_OK | os.X_OK):
        what = f"you may not write to {there}"
    if what is not None:
        raise ConfigError(f"{name} cannot be {folder}: {what}; name another folder")


# --- Files -----------------------------------------------------------------------------------------------------------


def write_whole(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Write `content` under a temporary name, then rename it in one step.

    Args:
        sync: make the disk keep the content before the renaming. Otherwise readers never see half of it either, but a
            power failure may leave it half-written.

    Raises:
        OSError: the disk refuses; `path` is as before.
    """
    part = path.with_name(f"{PART_PREFIX}{uuid4().hex}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view[:_CHUNK_BYTES]) :]
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, path)
    except OSError as error:
        if error.errno and not error.filename:  # as of a write
            error.filename = os.fspath(path)
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def link_whole(source: Path, path: Path) -> bool:
    """Give a complete file a second name; return False if it is gone or the file system cannot."""
    try:
        os.link(source, path)
    except OSError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` last through a power failure: a file's own sync does not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_files(folder: Path, prefixes: tuple[str, ...], keep: frozenset[str]) -> None:
    """Remove the files of `folder` whose name begins with one of `prefixes` and is not in `keep`."""
    for entry in os.scandir(folder):
        if entry.name.startswith(prefixes) and entry.name not in keep and entry.is_file(follow_symlinks=False):
            os.unlink(entry.path)


# --- Folders ---------------------------------------------------------------------------------------------------------


@contextmanager
def replacing_directory(target: Path) -> Iterator[Path]:
    """Give a scratch folder that replaces `target` when the block ends well, and is removed otherwise."""
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        replace_directory(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def replace_directory(scratch: Path, target: Path) -> None:
    """Move a finished folder to its place. A kill may leave none there, or the old one under a hidden name, never half.

    Raises:
        OSError: the disk refuses; `target` is as before.
    """
    old = target.with_name(f"{PART_PREFIX}{uuid4().hex}")
    if target.exists():
        os.rename(target, old)
    try:
        os.replace(scratch, target)
    except OSError:
        if old.exists():
            os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


class ScratchFolder:
    """A new folder of this process. It is removed by `remove`, when this object is dropped, or when the process ends,
    even by a kill; at the latest when another such folder is made. A lock in it, which the kernel releases however the
    process ends, shows the others that it is used.

    Args:
        parent: folder for it, created if missing.
        kind: start of the folder's name. Abandoned folders of the same kind are removed.
        name: rest of the folder's name.

    Raises:
        OSError: nothing can be written there, or the file system has no locks.
    """

    def __init__(self, parent: Path, kind: str, name: str = ""):
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent, kind)
        self.path, lock = _make_locked(parent, f"{kind}{name}")
        reaper.remove_at_end(self.path)
        self._finalizer = weakref.finalize(self, _remove_own, self.path, lock, os.getpid())

    def remove(self) -> None:
        """Remove it; safe to call twice."""
        self._finalizer()


def _make_locked(parent: Path, prefix: str) -> tuple[Path, FileLock]:
    """Make a new folder and its lock; make another if someone takes it for abandoned before it is locked."""
    tries_left = _TRIES
    while True:
        tries_left -= 1
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            return folder, FileLock(folder / _LOCK)
        except (FileNotFoundError, LockedError):
            if not tries_left:
                raise
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _remove_own(folder: Path, lock: FileLock, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child, which has a copy of the finalizer
        _remove_locked(folder, lock)


def _remove_locked(folder: Path, lock: FileLock) -> None:
    # The lock's file goes last: nobody looks again at a folder without one. Another user's folder in /tmp may have
    # become a link to one of ours meanwhile.
    with contextlib.suppress(OSError):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for entry in os.scandir(opened):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.name, ignore_errors=True, dir_fd=opened)
                elif entry.name != _LOCK:
                    os.unlink(entry.name, dir_fd=opened)
        finally:
            os.close(opened)
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()


def _remove_abandoned(parent: Path, kind: str) -> None:
    for folder in parent.glob(f"{kind}*"):
        if folder.is_symlink():
            continue
        try:
            lock = FileLock(folder / _LOCK, create=False)
        except OSError:  # it is used, being made or being removed, or is not ours
            continue
        logger.info("removing %s, left by a process that no longer runs", folder)
        _remove_locked(folder, lock)
