"""Fork all Ray workers of a run: import what they need, then wait for requests.

    python -m arpo_verl.engines.cpu.worker_server LISTENER        a descriptor that it inherits

`engines/cpu/worker_client.py` starts it with a worker's environment. That has the names of the raylet and the job,
which Ray's library reads when it is imported. The process ends with the raylet, and its forks with it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

PRELOAD = (
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1.trainer_sync",
    "verl.trainer.ppo.v1.agent_loop_tq",
    "verl.workers.engine_workers",
    "verl.workers.engine.fsdp.transformer_impl",
    "verl.experimental.reward_loop",
    "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl",
    "transformers.models.qwen2_5_vl.processing_qwen2_5_vl",
    "arpo_verl.plugin.agent_loop",
    "arpo_verl.plugin.sampler",
    "arpo_verl.plugin.dataset",
    "arpo_verl.desktops.pool.worker",
    "arpo_verl.engines.cpu.server",
    "arpo_verl.engines.cpu.adapter",
)
"""Modules that the workers of a run import. A missing one is skipped: the worker that needs it reports it."""
MAX_WISH = 16 << 20
GRACE_S = 5.0
"""Seconds that workers have to end by themselves after the raylet; they do not while it is a zombie."""
_HEAD = 8


class WorkerServer:
    """Forks a process for each request of a client.

    Args:
        listener: socket that clients connect to.
        owner: pidfd of the process with which the server ends.
        variables: environment variables that the imports set; a client's own override them.
    """

    def __init__(self, listener: socket.socket, owner: int, variables: dict[str, str]) -> None:
        self._listener = listener
        self._owner = owner
        self._variables = variables
        self._workers: dict[int, tuple[int, socket.socket]] = {}
        """A worker's process id and its client, by the worker's pidfd."""

    def run(self) -> None:
        """Serve until the owner is gone."""
        while True:
            clients = {client.fileno(): pidfd for pidfd, (_, client) in self._workers.items()}
            for fd in _readable([self._owner, self._listener.fileno(), *self._workers, *clients]):
                if fd == self._owner:
                    return self._end_workers()
                if fd == self._listener.fileno():
                    self._serve(self._listener.accept()[0])
                elif fd in self._workers:
                    self._tell_end(fd)
                elif clients[fd] in self._workers:  # the client was killed, as Ray does with a worker that it gives up
                    signal.pidfd_send_signal(clients[fd], signal.SIGKILL)
                    self._tell_end(clients[fd])

    def _serve(self, client: socket.socket) -> None:
        fds: list[int] = []
        try:
            wish = read_wish(client, fds)
            if wish is None:
                client.close()
            elif (pid := os.fork()) == 0:
                self._become(wish, fds, client)
            else:
                self._workers[os.pidfd_open(pid)] = pid, client
        except (OSError, ValueError):  # no process or memory left, or not a request at all; Ray tries again
            traceback.print_exc()
            client.close()
        for fd in fds:
            os.close(fd)

    def _become(self, wish: dict[str, Any], fds: list[int], client: socket.socket) -> NoReturn:
        """Run the requested script in the fork, to its end."""
        status = 1
        try:
            for number, fd in enumerate(fds):
                os.dup2(fd, number)
            for fd in (*fds, self._owner, *self._workers):
                os.close(fd)
            for one in (self._listener, client, *(other for _, other in self._workers.values())):
                one.close()
            status = run_script({**wish, "environ": {**self._variables, **wish["environ"]}})
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:  # even if they are closed: a fork never goes on as the server
                os._exit(status)

    def _end_workers(self) -> None:
        deadline = time.monotonic() + GRACE_S
        for pidfd in self._workers:
            if not _readable([pidfd], max(0.0, deadline - time.monotonic())):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _tell_end(self, pidfd: int) -> None:
        pid, client = self._workers.pop(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(pidfd)
        with client:
            with contextlib.suppress(OSError):  # the client was killed
                client.sendall(b"%d" % (code if code >= 0 else 128 - code))


def read_wish(client: socket.socket, fds: list[int]) -> dict[str, Any] | None:
    """Return a client's request, None if it ended early. Its three standard files are added to `fds`.

    Raises:
        OSError: the client was killed meanwhile.
        ValueError: the request is not JSON.
    """
    head, files, _, _ = socket.recv_fds(client, _HEAD, 3)
    fds += files
    length = int.from_bytes(head, "big") if len(head) == _HEAD else 0
    content = bytearray()
    while len(content) < length <= MAX_WISH and (piece := client.recv(length - len(content))):
        content += piece
    is_whole = 0 < length == len(content) and len(fds) == 3
    return json.loads(content) if is_whole else None


def run_script(wish: dict[str, Any]) -> int:
    """Run a script as `python SCRIPT ARGUMENTS...` does, and return the exit status."""
    with contextlib.suppress(PermissionError):  # the client has ended
        os.setpgid(0, wish["group"])
    signal.pthread_sigmask(signal.SIG_SETMASK, wish["blocked"])
    os.environ.clear()
    os.environ.update(wish["environ"])
    os.chdir(wish["cwd"])
    sys.argv = wish["argv"]
    # This is how an interpreter begins it; the variable may be this actor's own.
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [os.path.dirname(sys.argv[0]), *(one for one in folders if one and one not in sys.path)]
    # Without new seeds all forks would draw the same numbers; Python's own generator is reseeded by itself.
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed()
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # lets threads finish, as at an interpreter's end
    atexit._run_exitfuncs()
    return status


def preload() -> dict[str, str]:
    """Import what workers need, and return the environment variables that the imports set."""
    # Ray sets this for a worker of one processor; torch reads it when it is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # numpy's OpenBLAS and pyarrow's jemalloc must start no threads: see `require_one_thread`.
    os.environ.update(OPENBLAS_NUM_THREADS="1", JE_ARROW_MALLOC_CONF="background_thread:false")
    before = dict(os.environ)
    with _own_class_ids():
        for name in PRELOAD:
            try:
                importlib.import_module(name)
            except Exception as error:
                print(f"workers import {name} themselves: {error!r}", file=sys.stderr)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every page that they share
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


@contextlib.contextmanager
def _own_class_ids() -> Iterator[None]:
    """Keep actor classes from drawing their ids at import from the random generator of Ray's library.

    The forks would all have the generator's state, which nothing seeds again, and would give tasks and objects the
    same ids.
    """
    import ray.actor

    original = ray.actor.ActorClassID
    size = len(original.nil().binary())
    ray.actor.ActorClassID = SimpleNamespace(from_random=lambda: original(os.urandom(size)))
    try:
        yield
    finally:
        ray.actor.ActorClassID = original


def _readable(fds: list[int], timeout_s: float | None = None) -> list[int]:
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(None if timeout_s is None else timeout_s * 1000)]


def require_one_thread() -> None:
    """Exit if there are more threads: a fork would not have them, but would have the locks that they hold."""
    count = len(os.listdir("/proc/self/task"))
    if count > 1:
        sys.exit(f"the modules of Ray's workers started {count - 1} threads: each worker imports them itself")


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(listener.fileno(), False)
    owner = os.pidfd_open(int(os.environ["RAY_RAYLET_PID"]))
    variables = preload()
    require_one_thread()
    WorkerServer(listener, owner, variables).run()


if __name__ == "__main__":
    main()
