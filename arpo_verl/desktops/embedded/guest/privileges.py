"""A process gives up these privileges for good before it runs untrusted programs."""

from __future__ import annotations

import ctypes
import os
import resource

from .namespaces import check

MAX_FILE = 512 << 20
"""Most bytes of a file, as much as the home folder holds; also for files with holes, and for a command's output."""
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 22, 24, 38
_FILTER_MODE, _INSTRUCTION_BYTES = 2, 8
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITIES = 64
_DIE_FIRST = 500

_libc = ctypes.CDLL(None, use_errno=True)


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def die_first() -> None:
    """Let the kernel kill this process before the trainer when memory runs out; see `ProcessHandle.move_to` too."""
    with open("/proc/self/oom_score_adj", "r+") as score:
        if int(score.read()) < _DIE_FIRST:  # a pod may have a higher one, which it may not lower
            score.write(str(_DIE_FIRST))


def gain_none() -> None:
    """Forbid programs that this process becomes, such as setuid programs, to get more privileges than it has."""
    for number in range(_CAPABILITIES):  # of which it needs one itself, and goes without where it has not
        _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def become(user_id: int | None) -> None:
    """Become the user `user_id` (None: keep the user), without any capability.

    Raises:
        OSError: the kernel refuses.
    """
    if user_id is not None:
        os.setgroups([])
        os.setresgid(user_id, user_id, user_id)
        os.setresuid(user_id, user_id, user_id)
    # Drop every set of capabilities; becoming another user keeps the inheritable one.
    nothing = (ctypes.c_uint32 * 6)()
    check(_libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), nothing), "capset")


def hide() -> None:
    """Keep other programs of this user from attaching to this process and its forks. An exec undoes this."""
    check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")


def lose(user_id: int | None, code: bytes) -> None:
    """Become `user_id` (None: keep the user) for ever, without any capability, and refuse what the filter `code` does.

    No other program of this user may attach to this process: one that it starts, such as Playwright's driver, may be
    the policy's.

    Raises:
        OSError: the kernel refuses.
    """
    gain_none()
    become(user_id)
    hide()
    if code:
        refuse_calls(code)


def bound(pids: int, data_bytes: int | None) -> None:
    """Limit this user to `pids` processes and threads, each with `data_bytes` of its own memory."""
    _limit(resource.RLIMIT_NPROC, pids)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, MAX_FILE)
    if data_bytes is not None:
        _limit(resource.RLIMIT_DATA, data_bytes)


def refuse_calls(code: bytes) -> None:
    """Let the kernel apply a filter of system calls, see `seccomp.filter_program`."""
    buffer = ctypes.create_string_buffer(code)
    program = _SockFprog(len(code) // _INSTRUCTION_BYTES, ctypes.cast(buffer, ctypes.c_void_p))
    check(_libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0), "seccomp")


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    most = most if hard == resource.RLIM_INFINITY else min(hard, most)
    resource.setrlimit(which, (most, most))
