"""Stands for one of Ray's worker processes, which is a fork of `cpu/worker_server.py: WorkerServer`'s process.

    python -I -S worker_client.py SOCKET SCRIPT ARGUMENTS...

Ray starts this in the place of `python SCRIPT ARGUMENTS...`. It hands over what a process inherits, waits for the end
of the fork and ends in the same way; where it is killed the fork is killed too. The first one starts the server; where
that does not work it becomes an ordinary worker. For a bare interpreter: it imports nothing of the package.
"""

import json
import os
import signal
import socket
import sys
import time

SERVER = "arpo_verl.cpu.worker_server"
PATIENCE_S = 5.0


def main() -> int:
    """The fork's exit status, that of a shell where a signal ended it."""
    path, *argv = sys.argv[1:]
    try:
        with connect(path) as server:
            order(server, argv)
            answer = server.recv(16)  # nothing where the server is gone, and with it what started this
    except OSError as error:
        if not is_raylet_there():
            return 1  # nobody would end an ordinary worker
        print(f"no server of workers answers ({error}): this one imports all by itself", file=sys.stderr)
        os.execv(sys.executable, [sys.executable, *argv])  # noqa: S606  Ray's own words
    return int(answer or b"1")


def is_raylet_there() -> bool:
    """Whether the process that starts workers lives; a server that is gone may have ended with it."""
    try:
        os.kill(int(os.environ.get("RAY_RAYLET_PID", os.getpid())), 0)
    except ProcessLookupError:
        return False
    return True


def connect(path: str) -> socket.socket:
    """A connection to the server, which is started where there is none.

    Raises:
        OSError: nobody listens.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
    except OSError:  # another client was the first
        listener.close()
    else:
        listener.listen(128)
        os.set_inheritable(listener.fileno(), True)
        # In a process group of its own: Ray ends a worker's whole group with it.
        words = [sys.executable, "-m", SERVER, str(listener.fileno())]
        os.posix_spawn(sys.executable, words, os.environ, setpgroup=0)
        listener.close()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.connect(path)
            return server
        except ConnectionRefusedError:  # between `bind` and `listen`
            server.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def order(server: socket.socket, argv: list[str]) -> None:
    """Ask for a process with our arguments, environment, folder, signal mask, process group and standard files."""
    blocked = sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    wish = {"argv": argv, "environ": dict(os.environ), "cwd": os.getcwd(), "blocked": blocked, "group": os.getpgrp()}
    content = json.dumps(wish).encode()
    socket.send_fds(server, [len(content).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(content)


if __name__ == "__main__":
    sys.exit(main())
