"""OSWorld's unmodified Docker provider on a real engine, without Ray; test_machine.py has an episode."""

from pathlib import Path

import psutil
import pytest

pytest.importorskip("desktop_env")

from support.desktop_harness import eventually  # noqa: E402

from arpo_verl.desktops.config import EnvironmentConfig  # noqa: E402
from arpo_verl.desktops.osworld.docker_containers import DESKTOP_LABEL  # noqa: E402
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment  # noqa: E402
from arpo_verl.errors import DesktopBootError, DesktopLostError  # noqa: E402
from arpo_verl.tasks import load_tasks  # noqa: E402
from arpo_verl.tasks.expert import expert_replies  # noqa: E402
from arpo_verl.types import TypeText  # noqa: E402

pytestmark = pytest.mark.docker

TASK = next(task for task in load_tasks("embedded") if task.task_id == "editor-write-hello")
FIRST_PORTS = {5000, 8006, 8080, 9222}
"""Where OSWorld's provider begins to look for free ones."""


@pytest.fixture
def make(engine, vm, tmp_path):
    made = []

    def build(**options):
        options = {"screen_size": (1920, 1080), "path_to_vm": str(vm), "cache_dir": str(tmp_path / "cache")} | options
        made.append(OSWorldEnvironment(EnvironmentConfig(provider="docker", action_pause_s=0.5, **options)))
        return made[-1]

    yield build
    for environment in made:
        environment.close()


def container_of(engine, environment):
    (container,) = engine.client.containers.list(all=True, filters={"label": f"{DESKTOP_LABEL}={environment._id}"})
    return container


def ports_of(container):
    return {guest: int(hosts[0]["HostPort"]) for guest, hosts in container.attrs["NetworkSettings"]["Ports"].items()}


def ports_in_use():
    return {connection.laddr.port for connection in psutil.net_connections() if connection.laddr}


def test_a_dead_desktops_ports_never_lead_to_anothers(make, engine):
    """The engine gives a dead container's ports to whoever asks next."""
    dead, alive = make(), make()
    # OSWorld's provider takes the lowest port that is free. One on which a connection is in TIME_WAIT, which lasts a
    # minute, counts as used: in this network none stays there.
    Path("/proc/sys/net/ipv4/tcp_max_tw_buckets").write_text("0")
    eventually(lambda: not ports_in_use() & FIRST_PORTS, timeout_s=180.0)
    dead.reset(TASK)
    container = container_of(engine, dead)
    ports = ports_of(container)
    assert set(ports.values()) == FIRST_PORTS
    container.kill()
    eventually(lambda: not ports_in_use() & FIRST_PORTS, timeout_s=180.0)
    alive.reset(TASK)
    assert ports_of(container_of(engine, alive)) == ports
    for reply in expert_replies(TASK.task_id)[:-1]:
        for action in reply.actions:
            alive.step(action)
    before = alive._look()
    with pytest.raises(DesktopLostError):
        dead.evaluate()
    with pytest.raises(DesktopLostError):
        dead.step(TypeText("meant for another desktop"))
    dead._clean = True
    assert not dead.is_ready(), "a desktop that waits for its first task"
    assert alive._look() == before


def test_a_container_that_ends_while_it_boots_is_told_at_once_with_its_last_words(make, engine):
    """The provider's own wait asked its port for minutes."""
    environment = make(provider_options={"entrypoint": ["sh", "-c", "echo no disk; exit 3"]})
    with pytest.raises(DesktopBootError, match=r"is exited .exit code 3.; its last words: no disk"):
        environment.prepare()
    assert engine.client.containers.list(all=True, ignore_removed=True) == []
