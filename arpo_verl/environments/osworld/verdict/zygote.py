"""The sandbox host's only process imports OSWorld's client, and forks a sandbox for each evaluation.

It reads its worker's requests and nothing else, never a desktop's data. Each request is a packet with the descriptor of
the sandbox's channel; the answer is a descriptor of the sandbox's process. It ends when the worker is gone, and then
the kernel kills all sandboxes.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import traceback

from arpo_verl.desktop.guest.namespaces import ProcessNamespaces, end_with_parent
from arpo_verl.environments.osworld.verdict import sandbox, sandbox_limits

MAX_PACKET = 4096


def main(control_fd: int) -> None:
    """Serve until the worker is gone."""
    end_with_parent()
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    sandbox.warm_up()
    # A sandbox that collects garbage must not copy these objects.
    gc.collect()
    gc.freeze()
    wakeup, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    namespaces = ProcessNamespaces()
    try:
        control.send(json.dumps({"ready": os.getpid()}).encode())
        while True:
            readable, _, _ = select.select([control.fileno(), wakeup], [], [])
            if wakeup in readable:
                os.read(wakeup, 4096)
                _collect_dead()
            if control.fileno() in readable:
                packet, descriptors, _, _ = socket.recv_fds(control, MAX_PACKET, 1)
                if not packet:
                    break
                _fork_sandbox(control, namespaces, descriptors[0])
    except (BrokenPipeError, ConnectionResetError):
        pass  # the worker is gone
    os._exit(0)


def _fork_sandbox(control: socket.socket, namespaces: ProcessNamespaces, channel: int) -> None:
    try:
        pid = namespaces.fork()
    except OSError as error:
        os.close(channel)
        control.send(json.dumps({"error": str(error)}).encode())
        return
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            sandbox_limits.close_descriptors({channel})
            control.detach()
            sandbox.main(channel)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(channel)
    process = os.pidfd_open(pid)
    try:
        socket.send_fds(control, [json.dumps({"started": pid}).encode()], [process])
    finally:
        os.close(process)


def _collect_dead() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass
    sys.stderr.flush()
