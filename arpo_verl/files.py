"""Files and folders that are there whole or not at all, whatever kills the process or the machine.

Two places write otherwise, on purpose: `live.json` is overwritten in its place (`records.episode_folder`), and a
download goes into a part of its host's name, so that the next attempt overwrites what a killed one left
(`environments.osworld.downloads`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from arpo_verl import reaper
from arpo_verl.errors import ConfigError

logger = logging.getLogger(__name__)

PART_PREFIX = ".part-"
"""Of what an interrupted write leaves behind."""

_CHUNK_BYTES = 1 << 20
_LOCK = ".in-use"
_TRIES, _BEING_MADE_S = 20, 60.0


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
    """One sentence about what the file system refused, with what to do."""
    number = error.errno or 0
    if number == errno.EEXIST and os.path.isfile(error.filename or ""):
        number = errno.ENOTDIR  # where a folder was to be made
    told = _REFUSALS.get(number)
    if told is None or (error.filename is None and error.errno not in FULL):
        return str(error)
    return told.format(error.filename if error.filename is not None else "a file that was being written")


def check_place(name: str, folder: Path) -> None:
    """Refuse a folder that this user could not make or write to; nothing is made.

    Args:
        name: the option that names it, for the message.

    Raises:
        ConfigError: says which folder is in the way.
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
    """Write `content` under another name, and give it its own name in one step.

    Args:
        sync: have the disk keep the content before it gets its name; without, no reader ever sees half of it either,
            but a machine that loses its power may.

    Raises:
        OSError: the disk refuses; `path` is as it was.
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
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def link_whole(source: Path, path: Path) -> bool:
    """Give a file that is whole a second name; False where it is gone or the file system cannot."""
    try:
        os.link(source, path)
    except OSError:
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` last: a file's own sync does not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_files(folder: Path, prefixes: tuple[str, ...], keep: frozenset[str]) -> None:
    """Remove the files of `folder` whose name begins with one of `prefixes` and that are not to be kept."""
    for entry in os.scandir(folder):
        if entry.name.startswith(prefixes) and entry.name not in keep and entry.is_file(follow_symlinks=False):
            os.unlink(entry.path)


# --- Folders ---------------------------------------------------------------------------------------------------------


@contextmanager
def replacing_directory(target: Path) -> Iterator[Path]:
    """Give a scratch folder that takes `target`'s place when the block ends well, and vanishes when it does not."""
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
    """Give a finished folder its place. A kill may leave none there, or the old one under a hidden name, but no half.

    Raises:
        OSError: the disk refuses; `target` is as it was.
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
    """A new folder of this process. It goes with `remove`, when this object is dropped, or when the process ends,
    killed or not; at the latest when another one asks for such a folder.

    Args:
        parent: made where it is missing.
        kind: begins the folder's name, and those of the others that are looked through for abandoned ones.
        name: comes after it.

    Raises:
        OSError: nothing can be written there, or it has no locks.
    """

    def __init__(self, parent: Path, kind: str, name: str = ""):
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent, kind)
        self.path, lock = _make_locked(parent, f"{kind}{name}")
        reaper.remove_folder_at_end(self.path)
        self._finalizer = weakref.finalize(self, _remove_own, self.path, lock, os.getpid())

    def remove(self) -> None:
        """Remove it; safe to call twice."""
        self._finalizer()


def _make_locked(parent: Path, prefix: str) -> tuple[Path, int]:
    """A new folder and its lock, which the kernel lets go of however the process ends."""
    tries_left = _TRIES
    while True:
        tries_left -= 1
        hidden = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=parent))
        try:
            lock = os.open(hidden / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Under its name only once it is locked: else another process could take it for abandoned.
                return hidden.rename(parent / hidden.name.removeprefix(".")), lock
            except OSError:
                os.close(lock)
                raise
        except (FileNotFoundError, BlockingIOError):  # by a clock that jumped, another took it for abandoned
            if not tries_left:
                raise
        except OSError:
            shutil.rmtree(hidden, ignore_errors=True)
            raise


def _remove_own(folder: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child, which ends with a copy of this
        _remove_locked(folder, lock)


def _remove_locked(folder: Path, lock: int) -> None:
    # The lock's file last: a folder without one is never looked at again.
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != _LOCK:
                os.unlink(entry.path)
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_abandoned(parent: Path, kind: str) -> None:
    for folder in (*parent.glob(f"{kind}*"), *filter(_is_left_unmade, parent.glob(f".{kind}*"))):
        if folder.is_symlink():
            continue
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # being removed right now, not ours, or left before it had a lock
            if folder.name.startswith("."):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        logger.info("removing %s, which a process that is gone left behind", folder)
        _remove_locked(folder, lock)


def _is_left_unmade(hidden: Path) -> bool:
    """Whether a folder that is not under its name yet was made so long ago that its maker must have been killed."""
    try:
        return time.time() - hidden.lstat().st_mtime > _BEING_MADE_S
    except OSError:
        return False
