"""Sandboxes are forked from this template: a Python with all imports that a desktop needs.

It is the first process of a bubblewrap that shows the system read-only. No program of a desktop runs beside it or can
reach it: each sandbox is a fork, which enters its own namespaces without any privilege before it starts anything. So a
new sandbox costs two forks instead of a Python's start. The kernel ends all of them with the template.

Each request (`fork_server`) brings three files: the two channels of a sandbox and its log. The fork, the sandbox's
first process, waits on its own channel for its settings. Then it forks process
1 of the desktop, in a process namespace below its own, and stays to run commands apart from it (`apart`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass
from typing import Any

from . import apart, fork_server, init, interpreter, layout, namespaces, privileges
from .namespaces import MS_BIND, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_REC, mount, show_read_only

_MAX_PACKET = 65536
_UNUSED_PROC = ("sys", "sysrq-trigger", "irq", "bus")
"""Parts of `/proc` that show or set things of the whole machine: we make them read-only."""


@dataclass(frozen=True)
class Walls:
    """Every sandbox of a template has these walls, which `desktops/embedded/sandbox.py` on the host sets."""

    memory: dict[str, str]
    """Writable folders, and the options of their file systems."""
    visible: list[str]
    """Folders and links below those that stay visible."""
    terminals: str
    """Options of the terminals' file system."""
    system_v: dict[str, str]
    """Limits of System V objects, by the kernel's names."""
    user_id: int | None
    """The user in each sandbox's own user namespace; None if each gets a user of the machine."""
    seccomp: str
    """The filter of system calls, in hexadecimal; empty if there is none."""


def main(control_fd: int, walls: dict[str, Any]) -> None:
    """Fork sandboxes until the host is gone."""
    namespaces.end_with_parent()
    os.umask(0o022)
    layout.adopt()
    interpreter.warm_up()
    fork_server.serve(control_fd, lambda descriptors: _become_first_process(descriptors, Walls(**walls)))


def _become_first_process(fds: list[int], walls: Walls) -> None:
    """Leave the template for good, in the fork, and run."""
    os.setsid()
    control, connections, log = (os.dup(fd) for fd in fds)
    for standard, fd in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(fd, standard)
    fork_server.close_all_but((control, connections))
    channel = socket.socket(fileno=control)
    packet = channel.recv(_MAX_PACKET)  # by now it is in its control groups
    if packet:
        _enter(walls, channel, socket.socket(fileno=connections), **json.loads(packet))


def _enter(
    walls: Walls,
    control: socket.socket,
    connections: socket.socket,
    user_id: int | None,
    pids: int,
    data_bytes: int | None,
    files: dict[str, str],
) -> None:
    """Enter its own namespaces, memory and users, become two processes without privileges, and run."""
    if (user_id is None) == (walls.user_id is None):
        raise RuntimeError("a desktop needs a user of the machine or one of its own namespace, and never root")
    privileges.die_first()
    namespaces.leave_parents(namespaces.CLONE_NEWCGROUP if os.path.exists("/proc/self/ns/cgroup") else 0)
    _mount_memory(walls)
    for path, content in files.items():
        _show_file(path, content)
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, walls.terminals)
    namespaces.open_loopback()
    commands, of_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.closing(namespaces.ProcessNamespaces()) as below:
        process_1 = below.fork()
    if process_1:
        namespaces.own_mounts()
        mount("tmpfs", apart.TEMPORARY, "tmpfs", MS_NOSUID | MS_NODEV, apart.MEMORY)
    _mount_proc(walls)
    os.chdir("/")  # the root as it is now
    _lose_privileges(walls, user_id, pids, data_bytes)
    if process_1:
        for channel in (control, connections, of_server):
            channel.close()
        apart.serve(commands, os.pidfd_open(process_1))
    os.setsid()
    commands.close()
    init.main(control, connections, of_server)


def _mount_proc(walls: Walls) -> None:
    """Show the processes of this process's own namespace."""
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name, value in walls.system_v.items():
        # Not every kernel lets a user namespace's root set these.
        with contextlib.suppress(OSError), open(f"/proc/sys/kernel/{name}", "w") as file:
            file.write(value)
    for name in _UNUSED_PROC:
        if os.path.exists(f"/proc/{name}"):
            show_read_only(f"/proc/{name}", f"/proc/{name}")


def _lose_privileges(walls: Walls, user_id: int | None, pids: int, data_bytes: int | None) -> None:
    if walls.user_id is not None:
        namespaces.become_in_own_users(walls.user_id)
    privileges.lose(user_id, bytes.fromhex(walls.seccomp))
    privileges.bound(pids, data_bytes)


def _mount_memory(walls: Walls) -> None:
    """Mount memory to write to; visible folders below it stay visible."""
    links = {path: os.readlink(path) for path in walls.visible if os.path.islink(path)}
    shown = {path: os.open(path, os.O_PATH) for path in walls.visible if path not in links and os.path.exists(path)}
    for path, options in walls.memory.items():
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for path, fd in shown.items():
        os.makedirs(path, 0o755, exist_ok=True)
        mount(f"/proc/self/fd/{fd}", path, None, MS_BIND | MS_REC)
        os.close(fd)
    for path, target in links.items():
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.symlink(target, path)


def _show_file(path: str, content: str) -> None:
    """Show a file with this content instead of the file at `path`; no other path leads to it."""
    made = "/run/own"
    with open(made, "w") as file:
        file.write(content)
    os.chmod(made, 0o644)
    show_read_only(made, path)
    os.unlink(made)
