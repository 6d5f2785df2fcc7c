"""The one kind of lock on files and folders: it says who holds it, and no dead process does.

Claims of user ids (`desktops/embedded/users.py`) are the exception: locks on bytes of one file, which has more bytes
than a machine could have files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import threading
import time
from pathlib import Path


class LockedError(BlockingIOError):
    """Another lock on it is held; `holder` says by which process, since when, as far as it is known."""

    def __init__(self, path: Path, holder: str):
        super().__init__(errno.EAGAIN, f"locked by {holder}", str(path))
        self.holder = holder


class NoLocksError(OSError):
    """The file system has no locks."""


class FileLock:
    """An exclusive lock until `close`, or until this process ends, in any way.

    Neither its forks nor the programs that it starts keep it, and a second lock on the same path is refused even to
    this process. On NFS it holds among all hosts, for files alone. Who removes or replaces the file frees the name for
    others, so leave it there.

    Args:
        path: a folder that exists, or a file. The holder is noted in the file, so it must have no other use.
        create: whether to create a file that is missing.

    Raises:
        LockedError: it is locked.
        NoLocksError: the file system has no locks.
        OSError: it cannot be opened: it is a link, or gone.
    """

    def __init__(self, path: Path, *, create: bool = True):
        is_folder = path.is_dir() and not path.is_symlink()
        flags = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR | os.O_NONBLOCK | os.O_CREAT * create
        with _forks:
            self._descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            _open.add(self)
        try:
            _lock(self._descriptor, path, is_folder)
            opened = os.fstat(self._descriptor)
            if not os.path.samestat(opened, os.lstat(path)):
                raise FileNotFoundError(errno.ENOENT, "it was replaced while it was being locked", str(path))
            if not is_folder and opened.st_nlink == 1:  # else it is somebody's file, with its own content
                _note_holder(self._descriptor)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free it. Safe to call twice."""
        with _forks:
            if self in _open:
                with contextlib.suppress(OSError):  # the file system has no locks
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a fork that just began has it open too
                self._forget()

    def _forget(self) -> None:
        _open.discard(self)
        os.close(self._descriptor)


def _lock(descriptor: int, path: Path, is_folder: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        note = "" if is_folder else os.pread(descriptor, 200, 0).decode("utf-8", "replace")
        raise LockedError(path, "".join(filter(str.isprintable, note)) or "unknown") from error
    except OSError as error:
        raise NoLocksError(error.errno, error.strerror, str(path)) from error


def _note_holder(descriptor: int) -> None:
    note = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%F %T')}"
    with contextlib.suppress(OSError):  # on a full disk too it is locked
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.encode(), 0)


_open: set[FileLock] = set()
_forks = threading.RLock()  # a finalizer may close one lock while another is opened


def _forget_after_fork() -> None:
    """Close a fork's copies: a lock is free once nobody has the open file."""
    _forks.release()
    for lock in list(_open):
        lock._forget()


os.register_at_fork(before=_forks.acquire, after_in_parent=_forks.release, after_in_child=_forget_after_fork)
