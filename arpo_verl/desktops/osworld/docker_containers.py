"""Label Docker desktops' containers, so that none outlives the process that started it.

OSWorld's Docker provider gives its containers neither name nor label, and forgets one that it could not stop. So we
give it a Docker client that labels each container with its owner, this process. An owner's containers are removed by
its reaper, a small process that waits for its end, SIGKILL included; or by the next owner that starts on the same host
and can see that process's number, if the reaper died too, as in a pod. A function that asks the engine raises
`docker.errors.DockerException` if none answers.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.models.containers import Container, ContainerCollection

from arpo_verl.desktops.osworld import docker_network
from arpo_verl.desktops.osworld.guest_http import ask
from arpo_verl.errors import DesktopBootError

logger = logging.getLogger(__name__)

IMAGE = "happysixd/osworld-docker"
"""The image that OSWorld's provider runs."""
OWNER_LABEL, DESKTOP_LABEL = "arpo_verl.owner", "arpo_verl.desktop"
REAPER_START_S = 60.0
GUEST_POLL_S = 0.25
LOG = {"type": "json-file", "config": {"max-size": "4m"}}
"""The image prints the machine's serial port, to which its programs may write without end."""
LAST_LINES = 40
LOOPBACK = "127.0.0.1"


class DesktopDocker(docker.DockerClient):
    """The SDK's client, for the containers of one desktop. Make it with `from_env` and `of_desktop`.

    Its `containers.run` adds this desktop's labels and options. Its `containers.list` ignores containers that vanish
    while it looks, which happens all the time when many desktops are reset.
    """

    desktop_id = ""
    run_options: Mapping[str, Any] = {}

    @classmethod
    def of_desktop(cls, desktop_id: str, run_options: Mapping[str, Any]) -> DesktopDocker:
        """Connect to the engine that `DOCKER_HOST` names, by default this host's.

        Args:
            desktop_id: unique over all hosts and processes.
            run_options: keyword arguments added to `containers.run`; `environment` is merged.
        """
        client: DesktopDocker = cls.from_env()
        client.desktop_id, client.run_options = desktop_id, run_options
        return client

    @property
    def containers(self) -> ContainerCollection:
        return _DesktopContainers(client=self)

    def remove_containers(self) -> None:
        """Remove this desktop's containers, in whatever state they are."""
        for container in _labelled(self, f"{DESKTOP_LABEL}={self.desktop_id}"):
            _remove(container)


class _DesktopContainer(Container):
    def stop(self, **kwargs: Any) -> None:
        """Stop it at once. The provider would let the machine shut down, and the engine would kill it after 10 s, but
        nobody reads what it could save meanwhile."""
        super().stop(**{"timeout": 0} | kwargs)


class _DesktopContainers(ContainerCollection):
    model = _DesktopContainer

    def list(self, *args: Any, **kwargs: Any) -> list[Container]:
        containers: list[Container] = super().list(*args, **{"ignore_removed": True} | kwargs)
        return containers

    def run(self, image: str, command: Any = None, **kwargs: Any) -> Container:
        desktop: DesktopDocker = self.client
        desktop.remove_containers()  # one that the provider could not stop would be forgotten
        options = dict(desktop.run_options)
        image = options.pop("image", image)
        environment = {**kwargs.pop("environment", {}), **options.pop("environment", {})}
        labels = {**options.pop("labels", {}), OWNER_LABEL: this_owner(), DESKTOP_LABEL: desktop.desktop_id}
        # The provider would publish a machine that obeys anybody on all addresses; it uses only this one.
        ports = {guest: (LOOPBACK, port) for guest, port in kwargs.pop("ports", {}).items()}
        allowed = options.pop(docker_network.ALLOWED, ())
        networked = docker_network.options_for(options, desktop)
        more = {"log_config": LOG, **kwargs, **networked}
        container: Container = super().run(image, command, environment=environment, labels=labels, ports=ports, **more)
        if networked is not options:
            docker_network.seal(container, allowed)
        return container


def why_not_running(container: Container | None) -> str:
    """Return why a container does not run; empty if it does. Nothing ever starts one a second time."""
    if container is None:
        return "it was stopped"
    try:
        container.reload()
    except (DockerException, requests.RequestException) as error:
        return f"its engine says {error}"
    state = container.attrs["State"]
    if state["Running"]:
        return ""
    killed = "out of memory" if state.get("OOMKilled") else f"exit code {state.get('ExitCode')}"
    return f"its container {container.short_id} is {state['Status']} ({killed})"


def why_powered_off(container: Container | None) -> str:
    """Return proof that a container's machine was powered off from inside: it exited with 0, and nobody signalled it.

    Empty if it was killed, out of memory or stopped by a host, or if its engine does not answer or has forgotten how it
    ended: it keeps the last few hundred events, and none over its own restart, which ends containers.
    """
    if container is None:
        return ""
    try:
        container.reload()
        state = container.attrs["State"]
        if state["Running"] or state.get("OOMKilled") or state.get("ExitCode") != 0:
            return ""
        filters = {"container": container.id, "event": ["kill", "die"]}
        events = container.client.api.events(since=0, until=time.time(), filters=filters, decode=True)
        told = {event["Action"] for event in events}
    except (DockerException, requests.RequestException) as error:
        logger.debug("the engine does not say how a container ended: %s", error)
        return ""
    return "" if told != {"die"} else f"its machine powered off, and the container {container.short_id} exited with 0"


def await_guest(provider: Any, timeout_s: float) -> None:
    """Wait until the guest that `provider` has just started shows its screen.

    The provider's own wait goes on after the container has ended, and ends if another desktop answers at its port.

    Raises:
        DesktopBootError: the container ended, with its last words, or the guest does not answer within `timeout_s`.
    """
    deadline, connected = time.monotonic() + timeout_s, False
    url = f"http://localhost:{provider.server_port}/screenshot"
    while True:
        shown = _answers(url)
        connected = connected or shown or _listens(provider.server_port)
        reason = why_not_running(provider.container)
        if reason:
            raise DesktopBootError(f"{reason}; its last words: {_last_words(provider.container)}")
        if shown:
            return
        if time.monotonic() > deadline:
            raise DesktopBootError(
                f"its virtual machine did not answer within {timeout_s:g} s" + ("" if connected else _NO_LISTENER)
            )
        time.sleep(GUEST_POLL_S)


_NO_LISTENER = (
    f", and nothing ever listened on its port at {LOOPBACK}, where its container publishes it: the engine's loopback "
    "may not be this process's, as in a pod or a container with the host's Docker socket; give the pod the host's "
    "network (hostNetwork: true, docker run --network host), or run the engine as a sidecar of the same pod"
)


def _listens(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


def _answers(url: str) -> bool:
    try:
        with ask("GET", url, timeout=10) as response:
            return response.status_code == HTTPStatus.OK
    except requests.RequestException:
        return False


def _last_words(container: Container | None) -> str:
    try:
        log: bytes = b"" if container is None else container.logs(tail=LAST_LINES)
    except (DockerException, requests.RequestException) as error:
        return str(error)
    return log.decode(errors="replace").strip()[-3000:] or "none"


def pull_if_missing(client: docker.DockerClient, image: str) -> None:
    """Pull the image if it is not here. The provider would do so while it holds the lock of all desktops' ports."""
    try:
        client.images.get(image)
    except ImageNotFound:
        logger.warning("pulling the Docker image %s", image)
        client.images.pull(image)


_guard_lock = threading.Lock()
_guards: list[Any] = []


def guard_this_process() -> None:
    """Remove what dead owners on this host left, and start this process's reaper, once."""
    with _guard_lock:
        if _guards:
            return
        remove_of_dead_owners()
        # Its standard input ends when this process ends, in any way. It is no child: Ray kills a worker's children.
        command = [sys.executable, "-m", "arpo_verl.desktops.osworld.docker_reaper", this_owner()]
        reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        reaper.wait(REAPER_START_S)
        _guards.append(reaper.stdin)


def remove_of_dead_owners() -> None:
    """Remove the containers that dead processes left on this host."""
    with contextlib.closing(docker.from_env()) as client:
        for container in _labelled(client, OWNER_LABEL):
            owner = container.labels[OWNER_LABEL]
            if is_dead(owner) or (container.status != "running" and is_of_earlier_boot(owner)):
                logger.warning("removing the container %s of a process that died", container.short_id)
                _remove(container)


def remove_of_owner(owner: str) -> int:
    """Remove every container of `owner`; return how many there were."""
    with contextlib.closing(docker.from_env()) as client:
        containers = _labelled(client, f"{OWNER_LABEL}={owner}")
        for container in containers:
            _remove(container)
        return len(containers)


@functools.cache
def this_owner() -> str:
    """Return a name of this process, unique over reboots, hosts and namespaces: `host/boot/namespace/pid/start`."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.readlink("/proc/self/ns/pid")
    return "/".join((socket.gethostname(), boot, namespace, str(os.getpid()), str(_start_time(os.getpid()))))


def is_dead(owner: str) -> bool:
    """Return whether the process that `owner` names has certainly ended; False if we cannot see it from here."""
    _, boot, namespace, pid, start = _parts(owner)
    _, my_boot, my_namespace, *_ = _parts(this_owner())
    return (boot, namespace) == (my_boot, my_namespace) and _start_time(int(pid)) != int(start)


def is_of_earlier_boot(owner: str) -> bool:
    """Return whether a host with this one's name has rebooted since; two hosts may share a name and an engine."""
    host, boot, *_ = _parts(owner)
    my_host, my_boot, *_ = _parts(this_owner())
    return host == my_host and boot != my_boot


def _parts(owner: str) -> list[str]:
    """Split into host, boot, namespace, process and its start; all empty if the name is not one of ours."""
    parts = owner.split("/")
    return parts if len(parts) == len(this_owner().split("/")) else [""] * 5


def _start_time(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks, or None without one: the kernel reuses process ids."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


def _labelled(client: docker.DockerClient, label: str) -> list[Container]:
    containers: list[Container] = client.containers.list(all=True, filters={"label": label}, ignore_removed=True)
    return containers


def _remove(container: Container) -> None:
    try:
        container.remove(force=True, v=True)
    except NotFound:
        logger.debug("the container %s is gone already", container.short_id)
    except DockerException as error:
        if isinstance(error, APIError) and error.status_code == HTTPStatus.CONFLICT:
            logger.debug("the container %s is being removed already: %s", container.short_id, error)
            return
        logger.warning("the container %s could not be removed: %s", container.short_id, error)
