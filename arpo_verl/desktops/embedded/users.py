"""If we are root, each desktop gets its own user, which no other desktop of this machine has at the same time.

The kernel counts processes, pipes' memory and the like by user. So two desktops with one user share its limits: a fork
bomb in one leaves the other without a process. A claim is a lock on a byte of one file: it ends with its holder, in any
case, and holds for all processes that see the file. Containers of one host do not see each other's file. If they have
the host's user ids, they draw from 2^28, so that two of 1,000 desktops get the same one with a chance of 0.2%.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import struct
import tempfile
from pathlib import Path

from arpo_verl.errors import DesktopBootError

# No distribution uses these ids (systemd's table of ids calls them unused).
_MANY = range(0x7000_0000, 0x7FFF_FFFF)
_FEW = range(61_000, 65_000)
"""A container's user namespace often maps 65,536 ids."""
_FOLDERS = ("/run/arpo_verl", os.path.join(tempfile.gettempdir(), "arpo_verl-root"))
_LOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux


class UserClaim:
    """A user id that belongs to one desktop until `close`, or the end of this process."""

    def __init__(self, ids: range):
        """Claim one of `ids`.

        Raises:
            DesktopBootError: all are taken, or there is no folder for the claims.
        """
        self._file = open(_folder() / "users", "ab", buffering=0)
        first = secrets.randbelow(len(ids))
        for offset in range(len(ids)):
            self.user_id = ids[(first + offset) % len(ids)]
            if _lock(self._file.fileno(), self.user_id):
                return
        self.close()
        raise DesktopBootError(f"other desktops use all {len(ids)} users that this machine has for desktops")

    def close(self) -> None:
        """Give it back. Safe to call twice."""
        self._file.close()


def claim_user() -> UserClaim | None:
    """Claim a user for a new desktop; None if we are not root, or our namespace has no other user.

    Raises:
        DesktopBootError: all are taken, or there is no folder for the claims.
    """
    ids = available_ids()
    return None if ids is None else UserClaim(ids)


def available_ids() -> range | None:
    """Return the user ids that we may become; None if we need a user namespace instead."""
    if os.geteuid() != 0:
        return None
    with open("/proc/self/uid_map") as table:
        spans = [(int(first), int(first) + int(count)) for first, _, count in map(str.split, table)]
    return next((ids for ids in (_MANY, _FEW) if any(a <= ids.start and ids.stop <= b for a, b in spans)), None)


def _lock(fd: int, user_id: int) -> bool:
    """Lock a byte; return whether we have it. The lock belongs to the open file, so even one process claims it once."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, user_id, 1, 0))
    except (BlockingIOError, PermissionError):  # POSIX allows either
        return False
    return True


def _folder() -> Path:
    """Return a folder that only root can use: anybody who can open the file can lock all of it."""
    for folder in _FOLDERS:
        with contextlib.suppress(OSError):
            os.makedirs(folder, 0o700, exist_ok=True)
            status = os.lstat(folder)
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                return Path(folder)
    raise DesktopBootError(f"none of {', '.join(_FOLDERS)} is a folder for root only; make one, with mode 0700")
