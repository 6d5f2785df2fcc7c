"""A sandbox runs one evaluation: this fork of the zygote isolates itself, evaluates a desktop, reports and is killed.

The worker sends its request before it reads a byte from the desktop: the task, the files that the client has
downloaded for it, the time-outs. From then on we trust only its messages on its channel, after `sandboxed_evaluator`
has checked them.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.embedded.guest import privileges
from arpo_verl.desktops.embedded.machine_provider import GUEST_PORTS, GuestAddress, MachineProvider
from arpo_verl.desktops.osworld.verdict import messages, sandbox_limits
from arpo_verl.desktops.osworld.verdict.host_command import SCRATCH
from arpo_verl.errors import DesktopError

GUEST_HOST = "127.0.0.1"
"""The desktop's host inside a sandbox, at `GUEST_PORTS`, whatever its real address is."""
PROXY_PORT = 3128
"""The port of the proxy to the hosts that the recipe allows."""
_PROXY_URL = f"http://{GUEST_HOST}:{PROXY_PORT}"
CACHE, WORK = f"{SCRATCH}/cache", f"{SCRATCH}/work"


@dataclass(frozen=True)
class Bounds:
    """These are a sandbox's limits."""

    memory_bytes: int
    """For each of its processes, beside what the imported client takes."""
    scratch_bytes: int
    """Space for files, beside the task's own."""
    time_s: float


@dataclass(frozen=True)
class VerdictRequest:
    """This request is all that a sandbox gets."""

    name: str
    spec: Mapping[str, Any]
    bounds: Mapping[str, Any]
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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
    bounds = Bounds(**request.bounds)
    try:
        _shut_in(channel, request, bounds)
        answer = {"verdict": messages.encode_verdict(_evaluate(request, channel))}
    except BaseException as error:
        answer = {"fault": _fault(error)}
    messages.send(channel, answer)


def _shut_in(channel: socket.socket, request: VerdictRequest, bounds: Bounds) -> None:
    """Isolate this process before it reads from the desktop: namespaces, ports, no privileges, then files, limits."""
    files = [(str(path), int(size)) for path, size in request.files]
    privileges.die_first()
    sandbox_limits.enter_own_namespaces(bounds.scratch_bytes + sum(size for _, size in files), SCRATCH)
    ports = [*GUEST_PORTS, *([PROXY_PORT] if request.reaches_hosts else [])]
    listeners = [socket.create_server((GUEST_HOST, port)) for port in ports]
    messages.send_descriptors(channel, [listener.fileno() for listener in listeners])
    for listener in listeners:
        listener.close()  # only the worker, which has a copy, accepts
    sandbox_limits.drop_privileges(request.user_id)
    os.umask(0o077)
    for folder in (CACHE, WORK, os.environ["HOME"]):
        os.mkdir(folder)
    for (path, _), source in zip(files, messages.receive_descriptors(channel, len(files)), strict=True):
        _copy(source, f"{CACHE}/{path}")
    os.chdir(WORK)
    sandbox_limits.set_limits(bounds.memory_bytes, bounds.time_s, bounds.scratch_bytes)
    if request.reaches_hosts:
        os.environ.update(dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _PROXY_URL))


def _copy(source: int, target: str) -> None:
    """Copy the file, since a metric may open its files for writing."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(source, "rb") as read, open(target, "wb") as written:
        shutil.copyfileobj(read, written, 1 << 20)


class _RunningMachine(MachineProvider):
    """This provider's machine runs already, and keeps running."""

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
    client._set_task_info(dict(request.spec))
    client.setup_controller.reset_cache_dir(client.cache_dir)
    _tell_stages(client, channel)
    return evaluate(client, request.name, config.partial_credit > 0)


def _tell_stages(client: Any, channel: socket.socket) -> None:
    """Report whether the evaluation is reading the desktop's result or not: a dead sandbox cannot report that."""

    def told(function: Callable[..., Any] | None, stage: str) -> Callable[..., Any] | None:
        if function is None:
            return None

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            messages.send(channel, {"stage": stage, "function": str(getattr(function, "__name__", ""))})
            value = function(*args, **options)
            messages.send(channel, {"stage": ""})
            return value

        return call

    def told_all(functions: Any, stage: str) -> Any:
        return [told(one, stage) for one in functions] if isinstance(functions, list) else told(functions, stage)

    # Infeasible tasks have neither.
    if callable(client.metric) or isinstance(client.metric, list):
        client.metric = told_all(client.metric, "metric")
        client.result_getter = told_all(client.result_getter, "getter")


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
