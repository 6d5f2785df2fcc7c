"""With these namespaces a forked process leaves its parent's mounts, network, processes and names.

Each function raises OSError if the kernel refuses.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWPID, _CLONE_NEWNET, _CLONE_NEWUSER = 0x20000000, 0x40000000, 0x10000000
CLONE_NEWCGROUP = 0x02000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 1 << 5, 1 << 12
MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise the C library's error, with `what` in its message, if a call's `result` is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


class ProcessNamespaces:
    """Gives each forked child its own process namespace, in which it is the first process."""

    def __init__(self) -> None:
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self) -> int:
        """Fork a child into a new process namespace; when it ends, all that it started ends too."""
        check(_libc.unshare(_CLONE_NEWPID), "unshare of processes")
        pid = None
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                check(_libc.setns(self._own, _CLONE_NEWPID), "setns")
        return pid

    def close(self) -> None:
        """Close its descriptor."""
        os.close(self._own)


def end_with_parent() -> None:
    """Let the kernel kill this process, even a stopped one, when its parent ends.

    A change of user or of privileges undoes this, so it is for a process that changes neither.
    """
    check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "death signal")


def leave_parents(more: int = 0) -> None:
    """Leave the parent's mounts, network, System V objects and host name, and the namespaces `more`."""
    check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWNET | _CLONE_NEWUTS | more), "unshare")
    mount("none", "/", None, MS_REC | _MS_PRIVATE)


def own_mounts() -> None:
    """Give this process its own mounts from now on."""
    check(_libc.unshare(_CLONE_NEWNS), "unshare of mounts")
    mount("none", "/", None, MS_REC | _MS_PRIVATE)


def become_in_own_users(user_id: int) -> None:
    """Enter a new user namespace as its only user `user_id`, with all privileges there."""
    outside = os.geteuid(), os.getegid()
    check(_libc.unshare(_CLONE_NEWUSER), "unshare of users")
    maps = {
        "setgroups": "deny",
        **{f"{kind}_map": f"{user_id} {n} 1" for kind, n in zip(("uid", "gid"), outside, strict=True)},
    }
    for name, value in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(value)


def open_loopback() -> None:
    """Bring up the network namespace's own interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(control, _SIOCSIFFLAGS, request)


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Call `mount(2)`."""
    words = [None if word is None else word.encode() for word in (source, target, kind, options)]
    check(_libc.mount(words[0], words[1], words[2], flags, words[3]), f"mount of {target}")


def show_read_only(source: str, target: str) -> None:
    """Mount `source` over `target`, read-only."""
    mount(source, target, None, MS_BIND | MS_REC)
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
