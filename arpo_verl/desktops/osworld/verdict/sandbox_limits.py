"""This module makes a forked process a sandbox: namespaces, memory to write to, loopback, no privileges, limits."""

from __future__ import annotations

import os
import resource

from arpo_verl.desktops.embedded import seccomp
from arpo_verl.desktops.embedded.guest import namespaces, privileges
from arpo_verl.desktops.embedded.guest.namespaces import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, mount

MAX_PROCESSES = 512
"""Processes and threads of a sandbox; Playwright's driver and a metric's libraries need some dozens."""
MAX_FILES = 1024
MAX_INODES = 50_000
SHARED_MEMORY_BYTES = 64 << 20
"""Size of `/dev/shm`."""


def enter_own_namespaces(scratch_bytes: int, scratch: str) -> None:
    """Leave the parent's mounts, network, System V objects and host name; mount empty memory at `scratch`.

    Raises:
        OSError: the kernel refuses.
    """
    namespaces.leave_parents()
    options = f"size={scratch_bytes},nr_inodes={MAX_INODES},mode=1777"
    mount("tmpfs", scratch, "tmpfs", MS_NOSUID | MS_NODEV, options)
    data_only = MS_NOSUID | MS_NODEV | MS_NOEXEC
    mount("tmpfs", "/dev/shm", "tmpfs", data_only, f"size={SHARED_MEMORY_BYTES},nr_inodes=1000,mode=1777")
    # Terminals use kernel memory that the whole machine shares, and no metric needs one.
    mount("tmpfs", "/dev/pts", "tmpfs", data_only | MS_RDONLY, "size=4096,nr_inodes=1,mode=555")
    mount("proc", "/proc", "proc", data_only)
    namespaces.open_loopback()


def drop_privileges(user_id: int | None) -> None:
    """Become `user_id` (None: keep the user), without any capability, for ever; no process may look into this one.

    Raises:
        OSError: the kernel refuses.
    """
    privileges.gain_none()
    privileges.become(user_id)
    # A program that it starts, such as Playwright's driver, runs as the same user.
    privileges.hide()
    if seccomp.is_supported():
        privileges.refuse_calls(seccomp.filter_program())


def set_limits(memory_bytes: int, cpu_s: float, file_bytes: int) -> None:
    """Limit each process of the sandbox; it may take `memory_bytes` beside what it has now."""
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
                pass  # the descriptor of the listing itself
