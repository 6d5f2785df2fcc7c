"""A sandbox runs one evaluation: a fork of the host isolates itself, evaluates a desktop, reports and is killed.

The worker sends its request before it reads a byte from the desktop: the task, the files that the client has
downloaded for it, the time-outs. From then on we trust only its messages on its channel, after `sandboxed_evaluator`
has checked them.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.embedded import seccomp
from arpo_verl.desktops.embedded.guest import fork_server, namespaces, privileges
from arpo_verl.desktops.embedded.guest.namespaces import MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_RDONLY, mount
from arpo_verl.desktops.machine_provider import GUEST_PORTS, GuestAddress, MachineProvider
from arpo_verl.desktops.osworld.verdict import messages
from arpo_verl.desktops.osworld.verdict.host_command import SCRATCH
from arpo_verl.errors import DesktopError

GUEST_HOST = "127.0.0.1"
"""The desktop's host inside a sandbox, at `GUEST_PORTS`, whatever its real address is."""
PROXY_PORT = 3128
"""The port of the proxy to the hosts that the recipe allows."""
_PROXY_URL = f"http://{GUEST_HOST}:{PROXY_PORT}"
CACHE, WORK = f"{SCRATCH}/cache", f"{SCRATCH}/work"
MAX_PROCESSES = 512
"""Processes and threads of a sandbox; Playwright's driver and a metric's libraries need some dozens."""
MAX_FILES = 1024
MAX_INODES = 50_000
SHARED_MEMORY_BYTES = 64 << 20
"""Size of `/dev/shm`."""


@dataclass(frozen=True)
class VerdictRequest:
    """All that a sandbox gets from its worker."""

    name: str
    spec: Mapping[str, Any]
    memory_bytes: int
    """For each of its processes, beside what the imported client takes."""
    scratch_bytes: int
    """Space for files, beside the task's own."""
    time_s: float
    client_options: Mapping[str, Any]
    """The arguments of `DesktopEnv`."""
    config: Mapping[str, Any]
    """The fields of `EnvironmentConfig` with the client's time-outs and attempts."""
    state: Mapping[str, Any]
    """Attributes of the client that the episode has changed."""
    user_id: int | None = None
    """The user that it becomes; None keeps the caller's."""
    files: tuple[tuple[str, int], ...] = ()
    """Each file's path below the client's folder, and its size in bytes; the descriptors follow the request."""
    reaches_hosts: bool = False
    """Whether there is a proxy to the hosts that the recipe allows."""
    runs_policy_code: bool = False
    """Whether a metric may import what the policy wrote."""


def serve(control_fd: int) -> None:
    """Import OSWorld's client, then fork a sandbox for each request until the worker is gone: the host's only process.

    It never reads a desktop's data. Each request (`desktops/embedded/guest/fork_server.py`) brings the descriptor of
    the sandbox's channel.
    """
    namespaces.end_with_parent()
    warm_up()
    fork_server.serve(control_fd, _become_sandbox)


def _become_sandbox(descriptors: list[int]) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    fork_server.close_all_but(descriptors)
    main(*descriptors)


def warm_up() -> None:
    """Import all that an evaluation needs, and close the ways from data to code."""
    from arpo_verl.desktops.osworld import client, evaluation  # noqa: F401
    from arpo_verl.desktops.osworld.verdict import closed_ways, mended_metrics

    closed_ways.close_all()
    mended_metrics.mend_all()


def main(channel_fd: int) -> None:
    """Evaluate the channel's request. It always ends with one last frame, or with this process's death."""
    channel = socket.socket(fileno=channel_fd)
    message = messages.receive(channel, messages.MAX_REQUEST_BYTES)
    if message is None:
        return
    request = VerdictRequest(**message)
    try:
        _shut_in(channel, request)
        answer = {"verdict": asdict(_evaluate(request, channel))}
    except BaseException as error:
        answer = {"fault": _fault(error)}
    messages.send(channel, answer)


def _shut_in(channel: socket.socket, request: VerdictRequest) -> None:
    """Isolate this process before it reads from the desktop: namespaces, ports, no privileges, then files, limits."""
    files = [(str(path), int(size)) for path, size in request.files]
    privileges.die_first()
    _enter_own_namespaces(request.scratch_bytes + sum(size for _, size in files))
    ports = [*GUEST_PORTS, *([PROXY_PORT] if request.reaches_hosts else [])]
    listeners = [socket.create_server((GUEST_HOST, port)) for port in ports]
    messages.send_descriptors(channel, [listener.fileno() for listener in listeners])
    for listener in listeners:
        listener.close()  # only the worker, which has a copy, accepts
    privileges.lose(request.user_id, seccomp.filter_program(maps_memory=True) if seccomp.is_supported() else b"")
    os.umask(0o077)
    for folder in (CACHE, WORK, os.environ["HOME"]):
        os.mkdir(folder)
    for (path, _), source in zip(files, messages.receive_descriptors(channel, len(files)), strict=True):
        _copy(source, f"{CACHE}/{path}")
    os.chdir(WORK)
    _set_limits(request.memory_bytes, request.time_s, request.scratch_bytes)
    if request.reaches_hosts:
        os.environ.update(dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _PROXY_URL))


def _enter_own_namespaces(scratch_bytes: int) -> None:
    """Leave the parent's mounts, network, System V objects and host name; mount empty memory at `SCRATCH`.

    Raises:
        OSError: the kernel refuses.
    """
    namespaces.leave_parents()
    options = f"size={scratch_bytes},nr_inodes={MAX_INODES},mode=1777"
    mount("tmpfs", SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, options)
    data_only = MS_NOSUID | MS_NODEV | MS_NOEXEC
    mount("tmpfs", "/dev/shm", "tmpfs", data_only, f"size={SHARED_MEMORY_BYTES},nr_inodes=1000,mode=1777")
    # Terminals use kernel memory that the whole machine shares, and no metric needs one.
    mount("tmpfs", "/dev/pts", "tmpfs", data_only | MS_RDONLY, "size=4096,nr_inodes=1,mode=555")
    mount("proc", "/proc", "proc", data_only)
    namespaces.open_loopback()


def _set_limits(memory_bytes: int, cpu_s: float, file_bytes: int) -> None:
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


def _copy(source: int, target: str) -> None:
    """Copy the file, since a metric may open its files for writing."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(source, "rb") as read, open(target, "wb") as written:
        shutil.copyfileobj(read, written, 1 << 20)


class _RunningMachine(MachineProvider):
    """A provider whose machine runs already, and keeps running."""

    def start(self) -> None: ...
    def stop(self) -> None: ...

    def address(self) -> GuestAddress:
        return GuestAddress(GUEST_HOST)


def _evaluate(request: VerdictRequest, channel: socket.socket) -> Any:
    from arpo_verl.desktops.osworld.client import Client
    from arpo_verl.desktops.osworld.evaluation import evaluate
    from arpo_verl.desktops.osworld.verdict import closed_ways

    closed_ways.allow_imports(request.runs_policy_code)
    closed_ways.know_task_files([f"{CACHE}/{path}" for path, _ in request.files])
    config = EnvironmentConfig(**request.config)
    options = {**request.client_options, "screen_size": tuple(request.client_options["screen_size"])}
    machine: dict[str, Any] = {"provider_name": "docker", "region": _RunningMachine(), "path_to_vm": "local"}
    client = Client(config, "sandbox", **machine, cache_dir=CACHE, **options)
    for name, value in request.state.items():
        setattr(client, name, value)
    closed_ways.keep_apart(request.spec)
    client._set_task_info(dict(request.spec))
    client.setup_controller.reset_cache_dir(client.cache_dir)
    _tell_stages(client, channel)
    return evaluate(client, request.name, config.partial_credit > 0)


def _tell_stages(client: Any, channel: socket.socket) -> None:
    """Report which function reads the desktop's result at the moment: a dead sandbox cannot report that."""

    def told(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
        if function is None:
            return None

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            messages.send(channel, {"reads": str(getattr(function, "__name__", "?"))})
            value = function(*args, **options)
            messages.send(channel, {"reads": ""})
            return value

        return call

    # Infeasible tasks have neither.
    for name in ("metric", "result_getter"):
        functions = getattr(client, name)
        if isinstance(functions, list):
            setattr(client, name, [told(one) for one in functions])
        elif callable(functions):
            setattr(client, name, told(functions))


def _fault(error: BaseException) -> dict[str, str]:
    """Return the fault to report: the first `DesktopError` of the chain, otherwise the exception itself."""
    known = desktop_cause(error) or error
    return {"class": type(known).__name__, "message": str(known)[: messages.MAX_TEXT]}


def desktop_cause(error: BaseException) -> DesktopError | None:
    """Return our own error, raised directly or inside one of the client's, which wraps a set-up step's error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DesktopError):
            return cause
        cause = cause.__cause__
    return None
