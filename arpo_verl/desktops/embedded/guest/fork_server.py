"""A warm Python forks a process for each request of its owner, which `desktops/embedded/fork_server.py` is on the other
side.

It is the first process of a bubblewrap, reads the owner's requests and nothing else, and imports nothing but the
standard library. A request is a packet with descriptors for the fork; the answer is a descriptor of the fork, which is
the first process of a process namespace. When the owner is gone it ends, and then the kernel kills all forks.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence

from .namespaces import ProcessNamespaces

_MAX_PACKET = 64
_MAX_DESCRIPTORS = 3


def serve(control_fd: int, become: Callable[[list[int]], None]) -> None:
    """Fork until the owner is gone; never return. Import before what the forks need.

    Args:
        control_fd: the descriptor of the owner's channel.
        become: what a fork runs, with the descriptors of its request; it closes all others.
    """
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    wakeup, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    children = ProcessNamespaces()
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every shared page
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the owner is gone
        control.send(b"{}")
        while True:
            readable, _, _ = select.select([control.fileno(), wakeup], [], [])
            if wakeup in readable:
                _collect_dead(wakeup)
            if control.fileno() in readable:
                packet, descriptors, _, _ = socket.recv_fds(control, _MAX_PACKET, _MAX_DESCRIPTORS)
                if not packet:
                    break
                _fork(control, children, descriptors, become)
    os._exit(0)


def _fork(
    control: socket.socket, children: ProcessNamespaces, descriptors: list[int], become: Callable[[list[int]], None]
) -> None:
    try:
        pid = children.fork()
    except OSError as error:
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps({"error": str(error)}).encode())
        return
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.detach()  # `become` closes its descriptor
            become(descriptors)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)
    process = os.pidfd_open(pid)
    try:
        socket.send_fds(control, [b"{}"], [process])
    finally:
        for descriptor in (*descriptors, process):
            os.close(descriptor)


def close_all_but(keep_fds: Sequence[int]) -> None:
    """Close all files but the standard three and these."""
    low = 3
    for fd in sorted(keep_fds):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def _collect_dead(wakeup: int) -> None:
    os.read(wakeup, 4096)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    sys.stderr.flush()
