"""What makes a forked process a box: namespaces, memory to write to, loopback, no privilege, bounds."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import socket
import struct

from arpo_verl.desktop import seccomp

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWPID, _CLONE_NEWNET = 0x20000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 1 << 14, 1 << 18
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_FILTER_MODE, _INSTRUCTION_BYTES = 2, 8
_CAPABILITY_VERSION_3 = 0x20080522
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40

MAX_PROCESSES = 512
"""Processes and threads of a box; Playwright's driver and a metric's libraries need some dozens."""
MAX_FILES = 1024
MAX_INODES = 50_000
SHARED_MEMORY_BYTES = 64 << 20
"""In `/dev/shm`."""


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


class ProcessNamespaces:
    """Gives each next child of this process a process namespace of its own, of which it is the first process."""

    def __init__(self) -> None:
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self) -> int:
        """`os.fork`, the child in a new process namespace: with it ends whatever it started.

        Raises:
            OSError: the kernel refuses.
        """
        _check(_libc.unshare(_CLONE_NEWPID), "unshare of processes")
        pid = None
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                _check(_libc.setns(self._own, _CLONE_NEWPID), "setns")
        return pid


def enter_own_namespaces(scratch_bytes: int, scratch: str) -> None:
    """Leave the parent's mounts, network, System V objects and host name; have empty memory at `scratch` to write to.

    Raises:
        OSError: the kernel refuses.
    """
    _check(_libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWNET | _CLONE_NEWUTS), "unshare")
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    options = f"size={scratch_bytes},nr_inodes={MAX_INODES},mode=1777"
    _mount("tmpfs", scratch, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    data_only = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _mount("tmpfs", "/dev/shm", "tmpfs", data_only, f"size={SHARED_MEMORY_BYTES},nr_inodes=1000,mode=1777")
    # Terminals are kernel memory that all of a machine share, and no metric needs one.
    _mount("tmpfs", "/dev/pts", "tmpfs", data_only | _MS_RDONLY, "size=4096,nr_inodes=1,mode=555")
    _mount("proc", "/proc", "proc", data_only)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(control, _SIOCSIFFLAGS, request)


def die_first() -> None:
    """When the machine's memory runs out, the kernel takes a box, not the trainer. What root says can't be unsaid."""
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")


def drop_privileges(user_id: int | None) -> None:
    """Become `user_id` (None: stay who we are), without any capability, for ever; nobody may look into this process.

    Raises:
        OSError: the kernel refuses.
    """
    if user_id is not None:
        os.setgroups([])
        os.setresgid(user_id, user_id, user_id)
        os.setresuid(user_id, user_id, user_id)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    # A program that it starts, such as Playwright's driver, runs as the same user.
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
    if seccomp.is_supported():
        code = ctypes.create_string_buffer(seccomp.filter_program())
        program = _SockFprog(len(code) // _INSTRUCTION_BYTES, ctypes.cast(code, ctypes.c_void_p))
        _check(_libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0), "seccomp")


def set_limits(memory_bytes: int, cpu_s: float, file_bytes: int) -> None:
    """Bound each process of the box; `memory_bytes` is what it may take beside what it has."""
    with open("/proc/self/status") as status:
        data = next(int(line.split()[1]) for line in status if line.startswith("VmData:")) << 10
    limits = {
        resource.RLIMIT_DATA: data + memory_bytes,
        resource.RLIMIT_CPU: int(cpu_s) + 1,
        resource.RLIMIT_FSIZE: file_bytes,
        resource.RLIMIT_NOFILE: MAX_FILES,
        resource.RLIMIT_NPROC: MAX_PROCESSES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for which, value in limits.items():
        hard = resource.getrlimit(which)[1]
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (least, least))


def close_descriptors(keep: set[int]) -> None:
    """Close every descriptor but `keep`; the standard ones lead nowhere."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind, options)]
    _check(_libc.mount(words[0], words[1], words[2], flags, words[3]), f"mount of {target}")
