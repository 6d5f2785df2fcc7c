"""What process 1 gives up before anything else runs."""

from __future__ import annotations

import ctypes
import os
import resource

MAX_FILE = 512 << 20
"""Bytes of a file: what the home folder holds. Counts for files with holes too, and for a command's output."""
_PR_SET_DUMPABLE = 4
_CAPABILITY_VERSION_3 = 0x20080522


def drop(user_id: int | None, pids: int, data_bytes: int | None) -> None:
    """Become the user `user_id` for good; protect process 1 and its forks from that user's other programs.

    `pids` processes and threads are all that the user may have, and `data_bytes` of memory each of them alone.
    """
    if user_id is not None:
        os.setgroups([])
        os.setresgid(user_id, user_id, user_id)
        os.setresuid(user_id, user_id, user_id)
    _drop_capabilities()
    _limit(resource.RLIMIT_NPROC, pids)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, MAX_FILE)
    if data_bytes is not None:
        _limit(resource.RLIMIT_DATA, data_bytes)
    # Same user, so by default any program could attach to process 1 and use its channels. An exec undoes this.
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.umask(0o022)


def condition() -> tuple[object, ...]:
    """What other programs of its user can change of process 1, and every later one inherits: limits, priority,
    processors."""
    kinds = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    limits = [resource.getrlimit(getattr(resource, name)) for name in kinds]
    return limits, os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getaffinity(0)


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(which, (most, most))


def _drop_capabilities() -> None:
    """Every set of them; becoming another user leaves the inheritable one."""
    _call("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())


def _call(function: str, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), function)
