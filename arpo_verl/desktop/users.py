"""A user for each desktop, where we are root: no other desktop of this machine has it at the same time.

The kernel counts processes, pipes' memory and the like by user, so two desktops that share one share its limits: a
fork bomb in one leaves the other without a process. Claims are locks on bytes of one file: they end with their holder,
however that ends, and hold between all processes that see the file. Containers of one host do not see each other's;
where they have the host's user ids they draw from 2^28, so that two of 1,000 desktops meet with a chance of 0.2%.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from arpo_verl.errors import DesktopBootError

# No distribution gives these ids to anything (systemd's table of ids calls them unused).
_MANY = range(0x7000_0000, 0x7FFF_FFFF)
_FEW = range(61_000, 65_000)
"""A container's user namespace often maps 65,536 ids."""
_FOLDERS = ("/run/arpo_verl", os.path.join(tempfile.gettempdir(), "arpo_verl-root"))
_LOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux


class UserClaim:
    """A user id that is this desktop's own until `close`, or the end of this process."""

    def __init__(self, ids: range):
        """Claim one of `ids`.

        Raises:
            DesktopBootError: all are taken, or there is nowhere to write them down.
        """
        self._file = open(_folder() / "users", "ab", buffering=0)
        first = secrets.randbelow(len(ids))
        for offset in range(len(ids)):
            self.user_id = ids[(first + offset) % len(ids)]
            if _lock(self._file.fileno(), self.user_id):
                return
        self.close()
        raise DesktopBootError(f"all {len(ids)} users that this machine has for desktops are taken")

    def close(self) -> None:
        """Give it back. Safe to call twice."""
        self._file.close()


def claim_user() -> UserClaim | None:
    """A user for a new desktop; None where we are not root, or the only user that our namespace has.

    Raises:
        DesktopBootError: all are taken, or there is nowhere to write them down.
    """
    ids = available_ids()
    return None if ids is None else UserClaim(ids)


def available_ids() -> range | None:
    """The user ids that we may become; None where a user namespace must do."""
    if os.geteuid() != 0:
        return None
    with open("/proc/self/uid_map") as table:
        spans = [(int(first), int(first) + int(count)) for first, _, count in map(str.split, table)]
    return next((ids for ids in (_MANY, _FEW) if any(a <= ids.start and ids.stop <= b for a, b in spans)), None)


def _lock(fd: int, user_id: int) -> bool:
    """Whether the byte is ours now. The lock is the open file's, so two claims of one process exclude each other."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, user_id, 1, 0))
    except (BlockingIOError, PermissionError):  # POSIX allows either
        return False
    return True


def _folder() -> Path:
    """A folder of root's alone: anybody who can open the file can lock all of it."""
    for folder in _usable(_FOLDERS):
        return folder
    raise DesktopBootError(f"none of {', '.join(_FOLDERS)} can be a folder of root's alone; make one, with mode 0700")


def _usable(folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
            status = os.lstat(folder)
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
            yield Path(folder)
