"""Stand for one of Ray's worker processes, a fork of the process of `engines/cpu/worker_server.py`.

    python -I -S worker_client.py SOCKET SCRIPT ARGUMENTS...

Ray starts this in the place of `python SCRIPT ARGUMENTS...`. It sends the server what a process inherits, waits for the
end of the fork and ends in the same way; if it is killed, so is the fork. The first client starts the server; if that
fails, it becomes an ordinary worker. It imports nothing of the package, since it runs in a bare interpreter.
"""

import json
import os
import signal
import socket
import sys
import time

SERVER = "arpo_verl.engines.cpu.worker_server"
PATIENCE_S = 5.0


def main() -> int:
    """Return the fork's exit status, or a shell's status for a signal that ended it."""
    path, *argv = sys.argv[1:]
    try:
        with connect(path) as server:
            order(server, argv)
            answer = server.recv(16)  # empty if the server is gone, and with it the raylet that started this
    except OSError as error:
        if not is_raylet_there():
            return 1  # nothing would end an ordinary worker
        print(f"no server of workers answers ({error}): this one imports all by itself", file=sys.stderr)
        os.execv(sys.executable, [sys.executable, *argv])  # noqa: S606  Ray's own words
    return int(answer or b"1")


def is_raylet_there() -> bool:
    """Return whether the process that starts workers lives; a server that is gone may have ended with it."""
    try:
        os.kill(int(os.environ.get("RAY_RAYLET_PID", os.getpid())), 0)
    except ProcessLookupError:
        return False
    return True


def connect(path: str) -> socket.socket:
    """Return a connection to the server, which is started if there is none.

    Raises:
        OSError: no server listens.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
    except OSError:  # another client was the first
        listener.close()
    else:
        listener.listen(128)
        os.set_inheritable(listener.fileno(), True)
        # The server gets a process group of its own: Ray ends a worker's whole group with it.
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
    """Request a process with our arguments, environment, folder, signal mask, process group and standard files."""
    blocked = sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    wish = {"argv": argv, "environ": dict(os.environ), "cwd": os.getcwd(), "blocked": blocked, "group": os.getpgrp()}
    content = json.dumps(wish).encode()
    socket.send_fds(server, [len(content).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(content)


if __name__ == "__main__":
    sys.exit(main())
