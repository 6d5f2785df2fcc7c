"""What process 1 gives up before anything else runs."""

from __future__ import annotations

import ctypes
import os
import resource

MAX_PROCESSES = 1024
"""Per desktop: a fork bomb typed by a policy stops here."""

_PR_SET_DUMPABLE = 4
_CAPABILITY_VERSION_3 = 0x20080522


def drop(user_id: int | None) -> None:
    """Become the user `user_id` for good; protect process 1 and its forks from that user's other programs."""
    _be_the_first_to_go()
    if user_id is not None:
        os.setgroups([])
        os.setresgid(user_id, user_id, user_id)
        os.setresuid(user_id, user_id, user_id)
    _drop_capabilities()
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = MAX_PROCESSES if hard == resource.RLIM_INFINITY else min(hard, MAX_PROCESSES)
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Same user, so by default any program could attach to process 1 and use its channels. An exec undoes this.
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.umask(0o022)


def _be_the_first_to_go() -> None:
    """When memory runs out, the kernel takes a desktop, not the trainer."""
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("500")
    except OSError:
        pass  # a hardened /proc: worth no failure


def _drop_capabilities() -> None:
    """Every set of them; becoming another user leaves the inheritable one."""
    _call("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)())


def _call(function: str, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), function)
