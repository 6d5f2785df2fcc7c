"""Ask a sandbox for a verdict: send the request, limit the time, and check the answer."""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from arpo_verl import errors
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.embedded import cgroups, users
from arpo_verl.desktops.embedded.process import ProcessHandle
from arpo_verl.desktops.machine_provider import CHROMIUM_PORT, GUEST_PORTS, SERVER_PORT, VLC_PORT
from arpo_verl.desktops.osworld.verdict import messages, sandbox, sandbox_host
from arpo_verl.desktops.osworld.verdict.closed_ways import HostileData
from arpo_verl.desktops.osworld.verdict.https_proxy import to_hosts
from arpo_verl.errors import DesktopError, EvaluatorError
from arpo_verl.lib.relay import Relay, to_address
from arpo_verl.types import Evaluation, MetricCall, Task

if TYPE_CHECKING:
    from arpo_verl.desktops.osworld.client import Client

logger = logging.getLogger(__name__)

TIME_SHARE = 0.9
"""Share of `evaluate_timeout_s`, so that we end the sandbox before the pool gives up the desktop."""
SCRATCH_BYTES = 1 << 30
CLIENT_BYTES = 1 << 28
"""Memory for OSWorld's client in a sandbox, which shares the host's pages until it writes to them."""
CPUS = 2.0
"""CPUs of a sandbox: metrics compute in one thread, Playwright's driver in another."""
MAX_FRAMES = 1000


class SandboxedEvaluator:
    """Evaluates one desktop, one evaluation at a time, each in a sandbox of its own.

    Args:
        config: the recipe's section.
        name: the desktop's, for messages.
    """

    def __init__(self, config: EnvironmentConfig, name: str):
        self._config = config
        self._name = name
        self._process: ProcessHandle | None = None
        self._closed = False
        self._reads = ""
        """The getter of the result, or the metric, which the sandbox said that it is in."""

    def __call__(self, client: Client, task: Task) -> Evaluation:
        """Return the verdict of `task`, which `client` has set up.

        Raises:
            DesktopError: as `evaluation.evaluate`, and `EvaluatorError` if the sandbox breaks.
        """
        deadline = time.monotonic() + self._time_s
        process, channel = sandbox_host.this_process_host().take_sandbox()
        user, group, self._process, self._reads = None, None, process, ""
        try:
            group = self._bounds(client)
            user = users.claim_user()
            if self._closed:
                raise EvaluatorError(f"{self._name} was closed before it was evaluated")
            with channel:
                try:
                    process.move_to(group)
                except OSError as error:  # if it died, reading its answer shows that
                    logger.warning("the sandbox of %s goes without limits on all that it starts: %s", self._name, error)
                return self._converse(channel, client, task, deadline, user)
        finally:
            self._process = None
            sandbox_host.remove(process, user, group)

    @property
    def _time_s(self) -> float:
        """The part of `evaluate_timeout_s` that is left after the pause before an evaluation."""
        return max(0.0, TIME_SHARE * self._config.evaluate_timeout_s - self._config.evaluate_pause_s)

    @property
    def _where(self) -> str:
        return f" in {self._reads}" if self._reads else ""

    @property
    def _memory_bytes(self) -> int:
        """The memory of each process of a sandbox, beside the client."""
        return int(self._config.evaluator_memory_gib * (1 << 30))

    def close(self) -> None:
        """End a running evaluation; any thread may call this."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()

    def _bounds(self, client: Client) -> cgroups.Cgroup:
        """Make the limits for a whole sandbox, shared memory included, before it gets anything."""
        files = sum(path.stat().st_size for path in _task_files(client))
        memory = self._memory_bytes + SCRATCH_BYTES + files
        memory += sandbox.SHARED_MEMORY_BYTES + CLIENT_BYTES
        return cgroups.Cgroup(cgroups.Limits(memory // cgroups.MIB, CPUS, sandbox.MAX_PROCESSES))

    def _converse(
        self,
        channel: socket.socket,
        client: Client,
        task: Task,
        deadline: float,
        user: users.UserClaim | None,
    ) -> Evaluation:
        try:
            relay = self._start(channel, client, task, deadline, None if user is None else user.user_id)
            try:
                return self._await_verdict(channel, deadline, task)
            finally:
                relay.close()
        except TimeoutError as error:
            raise EvaluatorError(
                f"{self._name}: the evaluator of task {task.task_id} took more than "
                f"{self._time_s:g} s{self._where}; see environment.evaluate_timeout_s"
            ) from error
        except (messages.BadMessage, OSError) as error:
            raise EvaluatorError(
                f"{self._name}: the sandbox in which task {task.task_id} was evaluated broke{self._where}: {error}"
            ) from error

    def _start(self, channel: socket.socket, client: Client, task: Task, deadline: float, user_id: int | None) -> Relay:
        """Send the sandbox its request; return its relay to the desktop and to the allowed hosts."""
        folder, files = Path(client.cache_dir), _task_files(client)
        hosts = self._config.evaluator_hosts
        descriptors = [os.open(path, os.O_RDONLY) for path in files]
        try:
            sizes = tuple(
                (str(path.relative_to(folder.parent)), os.fstat(descriptor).st_size)
                for path, descriptor in zip(files, descriptors, strict=True)
            )
            channel.settimeout(max(0.1, deadline - time.monotonic()))
            messages.send(channel, asdict(self._request(client, task, sizes, user_id)))
            ports = {SERVER_PORT: client.server_port, CHROMIUM_PORT: client.chromium_port, VLC_PORT: client.vlc_port}
            openers = [to_address(client.vm_ip, ports[port]) for port in GUEST_PORTS]
            openers += [to_hosts(hosts)] if hosts else []
            listeners = messages.receive_descriptors(channel, len(openers))
            relay = Relay([(socket.socket(fileno=fd), to) for fd, to in zip(listeners, openers, strict=True)])
            try:
                messages.send_descriptors(channel, descriptors)
            except BaseException:
                relay.close()
                raise
            return relay
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _request(
        self, client: Client, task: Task, files: tuple[tuple[str, int], ...], user_id: int | None
    ) -> sandbox.VerdictRequest:
        config = self._config
        return sandbox.VerdictRequest(
            name=self._name,
            spec=task.spec,
            memory_bytes=self._memory_bytes,
            scratch_bytes=SCRATCH_BYTES,
            time_s=config.evaluate_timeout_s,
            client_options={
                "os_type": client.os_type,
                "headless": client.headless,
                "enable_proxy": client.enable_proxy,
                "client_password": client.client_password,
                "screen_size": (client.screen_width, client.screen_height),
                "require_a11y_tree": client.require_a11y_tree,
            },
            config={
                "guest_attempts": config.guest_attempts,
                "guest_retry_s": config.guest_retry_s,
                "boot_timeout_s": config.boot_timeout_s,
                "partial_credit": config.partial_credit,
            },
            state={
                "action_history": client.action_history,
                "current_use_proxy": client.current_use_proxy,
                "is_environment_used": client.is_environment_used,
                "_step_no": client._step_no,
                "_traj_no": client._traj_no,
            },
            user_id=user_id,
            files=files,
            reaches_hosts=bool(config.evaluator_hosts),
            runs_policy_code=config.evaluator_runs_policy_code,
        )

    def _await_verdict(self, channel: socket.socket, deadline: float, task: Task) -> Evaluation:
        for _ in range(MAX_FRAMES):
            message = messages.receive(channel, messages.MAX_FRAME_BYTES, deadline)
            if message is None:
                raise ConnectionResetError("it ended without a message")
            if "verdict" in message:
                return decode_verdict(message["verdict"])
            if "fault" in message:
                return self._raise(message["fault"], task)
            reads = message.get("reads")
            if not isinstance(reads, str):
                raise messages.BadMessage("a stage without a name")
            self._reads = reads[:100]
        raise messages.BadMessage("more messages than an evaluation sends")

    def _raise(self, fault: Any, task: Task) -> Evaluation:
        if not isinstance(fault, dict) or not all(isinstance(fault.get(key), str) for key in ("class", "message")):
            raise messages.BadMessage("a fault without a name")
        name, message = fault["class"], fault["message"][: messages.MAX_TEXT]
        if name == "MemoryError" and self._reads:
            return self._own_doing(f"more than {self._config.evaluator_memory_gib:g} GiB of memory")
        if name == HostileData.__name__:
            return self._own_doing(message)
        known = getattr(errors, name, None)
        if isinstance(known, type) and issubclass(known, (DesktopError, errors.DesktopEndedError)):
            raise known(message)
        raise EvaluatorError(f"{self._name}: the evaluator of task {task.task_id} failed: {name}: {message}")

    def _own_doing(self, what: str) -> Evaluation:
        """Score 0, since the desktop sent what no honest state would: that is the policy's own doing."""
        logger.warning("%s: a desktop sent what no honest one would, so the episode scores 0: %s", self._name, what)
        return Evaluation(0.0, (MetricCall(self._reads, f"refused: {what}", "", "0.0"),))


def decode_verdict(value: Any) -> Evaluation:
    """Return a verdict from JSON's values, each of its declared type, with score and share in their range.

    Raises:
        BadMessage: it is no such verdict.
    """
    if not isinstance(value, dict) or not value.keys() <= {field.name for field in fields(Evaluation)}:
        raise messages.BadMessage("no verdict")
    try:
        return msgspec.convert(value, Evaluation)
    except (msgspec.ValidationError, EvaluatorError) as error:
        raise messages.BadMessage(str(error)) from error


def _task_files(client: Client) -> list[Path]:
    """Return the files that the client has downloaded for its task."""
    folder = Path(client.cache_dir)
    files = [path for path in sorted(folder.parent.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [path for path in files if path.is_relative_to(folder)]
