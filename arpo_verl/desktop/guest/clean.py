"""Back to nothing: every process but this one killed, everything written removed."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterable, Mapping


def kill_all() -> None:
    """Kill every other process of this process namespace and collect the dead. For process 1 only."""
    try:
        os.kill(-1, signal.SIGKILL)  # one pass of the kernel over all processes: a fork cannot slip through
    except ProcessLookupError:
        pass
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def snapshot(roots: Iterable[str]) -> dict[str, int]:
    """Every path under `roots` and its mode, taken before anything ran: read-only mounts that lie there, and ways to
    them."""
    return {path: _mode(path) for root in roots for path in _paths_in(root)}


def _mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def _paths_in(root: str) -> list[str]:
    paths = [root]
    if os.access(root, os.W_OK) or not os.path.ismount(root):  # a read-only mount is kept as a whole
        folders = [entry.path for entry in _entries(root) if entry.is_dir(follow_symlinks=False)]
        paths += [path for folder in folders for path in _paths_in(folder)]
    return paths


def wipe(roots: Iterable[str], keep: Mapping[str, int]) -> None:
    """Remove everything under `roots` that is not in `keep`, a `snapshot`, and give what is in it its mode again.

    Raises:
        OSError: something cannot be removed; this sandbox is not clean and must go.
    """
    for root in roots:
        _empty(root, keep)
    for path, mode in keep.items():
        if _mode(path) != mode:
            os.chmod(path, mode)
    _drop_shared_memory()


def _empty(directory: str, keep: Mapping[str, int]) -> None:
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        if os.statvfs(directory).f_flag & os.ST_RDONLY:  # a mount
            return
        os.chmod(directory, 0o700)
    for entry in _entries(directory):
        is_directory = entry.is_dir(follow_symlinks=False)
        if is_directory:
            _empty(entry.path, keep)
        if entry.path in keep:
            continue
        if is_directory:
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return list(entries)


def _drop_shared_memory() -> None:
    """System V segments outlive their makers."""
    for kind in ("shm", "sem", "msg"):
        with open(f"/proc/sysvipc/{kind}") as table:
            if len(table.readlines()) > 1:
                subprocess.run(["ipcrm", "--all"], check=True, capture_output=True)
                return
