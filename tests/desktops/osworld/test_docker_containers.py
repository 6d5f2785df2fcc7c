"""OSWorld's Docker provider as it is, through the Docker SDK as it is, over an engine that starts embedded desktops."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("desktop_env")
docker = pytest.importorskip("docker")

from requests.exceptions import ConnectionError  # noqa: E402
from support.desktop_harness import eventually  # noqa: E402
from support.docker_engine import end_guards  # noqa: E402
from support.fake_docker import IMAGE, FakeDocker  # noqa: E402

from arpo_verl.desktops.config import EnvironmentConfig  # noqa: E402
from arpo_verl.desktops.osworld import docker_containers, docker_network, docker_reaper  # noqa: E402
from arpo_verl.desktops.osworld.docker_containers import DESKTOP_LABEL, OWNER_LABEL, DesktopDocker  # noqa: E402
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment  # noqa: E402
from arpo_verl.errors import DesktopBootError, DesktopEndedError, DesktopError, DesktopLostError  # noqa: E402
from arpo_verl.tasks import load_tasks  # noqa: E402
from arpo_verl.tasks.expert import expert_replies  # noqa: E402
from arpo_verl.types import Finish  # noqa: E402

pytestmark = pytest.mark.desktop

# The keyboard is all it takes: its expert solves it on a screen of any size, however slow this machine is.
TASK = next(task for task in load_tasks("embedded") if task.task_id == "editor-write-hello")


@pytest.fixture
def engine(tmp_path, monkeypatch):
    engine = FakeDocker(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    end_guards()
    yield engine
    end_guards()
    engine.close()
    assert engine.unknown == []


@pytest.fixture
def make(engine, tmp_path):
    made = []
    vm = tmp_path / "Ubuntu.qcow2"
    vm.write_bytes(b"a disk that the stand-in does not read")

    def build(**options):
        options = {"screen_size": (1920, 1080), "path_to_vm": str(vm), "cache_dir": str(tmp_path / "cache")} | options
        made.append(OSWorldEnvironment(EnvironmentConfig(provider="docker", **options)))
        return made[-1]

    yield build
    for environment in made:
        environment.close()


@pytest.fixture
def client(engine):
    client = DesktopDocker.of_desktop("a-desktop", {})
    yield client
    client.close()


def owners(engine):
    return [container.options["Labels"][OWNER_LABEL] for container in engine.containers.values()]


def test_an_episode_runs_from_containers_run_to_evaluate(make, engine, tmp_path):
    options = {"environment": {"RAM_SIZE": "8G"}, "mem_limit": "10g"}
    environment = make(provider_options=options, action_pause_s=0.5, evaluate_pause_s=1)
    environment.reset(TASK)
    for reply in expert_replies(TASK.task_id):
        for action in reply.actions:
            environment.step(action)
    assert environment.evaluate().score == 1.0
    environment.reset(TASK)
    assert environment.evaluate().score == 0.0
    environment.close()
    assert engine.containers == {}
    assert len(engine.created) == 2
    assert engine.stop_timeouts == ["0", "0"], "nothing waits for a machine to shut down"
    _check_container(engine.created[0], tmp_path)
    assert [network["Name"] for network in engine.networks] == [docker_network.NETWORK], "made once, and kept"
    assert {created["HostConfig"]["NetworkMode"] for created in engine.created} == {docker_network.NETWORK}
    assert len(engine.commands) == 2 and all("iptables" in command["Cmd"][2] for command in engine.commands)


def test_another_network_is_the_users_own_choice(make, engine):
    environment = make(provider_options={"network": "mine"})
    environment.prepare()
    assert str(os.geteuid()) in environment._client.provider.lock_file.name, "another user's cannot be opened"
    environment.close()
    assert engine.networks == engine.commands == []


def test_private_networks_that_desktops_may_reach_are_told_to_the_filter(make, engine):
    environment = make(provider_options={"private_networks": ["10.1.2.3", "10.8.0.0/16"]})
    environment.prepare()
    environment.close()
    (command,) = engine.commands
    rules = command["Cmd"][2].splitlines()
    allowed = [rules.index(f"iptables -A ARPO -j RETURN -d {network}") for network in ("10.1.2.3", "10.8.0.0/16")]
    assert max(allowed) < rules.index("iptables -A ARPO -j REJECT -d 10.0.0.0/8")
    for wrong in ("10.0.0.0/8", ["10.0.0.0/33"], ["all"], [None], 3):
        with pytest.raises(ValueError, match="private_networks must be a list such as"):
            EnvironmentConfig(provider="docker", screen_size=(1920, 1080), provider_options={"private_networks": wrong})


def _check_container(created, tmp_path):
    """What the provider asks of the engine, and what the recipe adds to it."""
    host = created["HostConfig"]
    assert created["Image"] == IMAGE
    assert host["Binds"] == [f"{tmp_path}/Ubuntu.qcow2:/System.qcow2:ro"]
    assert sorted(host["PortBindings"]) == ["5000/tcp", "8006/tcp", "8080/tcp", "9222/tcp"]
    assert {hosts[0]["HostIp"] for hosts in host["PortBindings"].values()} == {"127.0.0.1"}
    assert bool(host.get("Devices")) == Path("/dev/kvm").exists()
    assert {"RAM_SIZE=8G", "CPU_CORES=4"} <= set(created["Env"]) and "RAM_SIZE=4G" not in created["Env"]
    assert host["Memory"] == 10 * 2**30 and host["LogConfig"]["Config"] == {"max-size": "4m"}
    assert created["Labels"][OWNER_LABEL] == docker_containers.this_owner()


@pytest.mark.parametrize(
    ("listens", "message"),
    [
        (True, "its virtual machine did not answer within 1 s$"),
        # The engine publishes on its own loopback, which is not a pod's.
        (False, "did not answer within 1 s, and nothing ever listened on its port .*hostNetwork: true"),
    ],
)
def test_a_desktop_that_never_answers_is_given_up_in_time_and_leaves_no_container(
    make, engine, monkeypatch, listens, message
):
    engine.guests_boot = False
    if not listens:
        monkeypatch.setattr("support.fake_docker.PortForward", lambda address: SimpleNamespace(close=lambda: None))
    with pytest.raises(DesktopBootError, match=message):
        make(boot_timeout_s=1).prepare()
    assert engine.created and engine.containers == {}


def test_closing_a_desktop_that_is_still_booting_removes_its_container(make, engine):
    engine.guests_boot = False
    environment = make(boot_timeout_s=2)
    with ThreadPoolExecutor(1) as thread:
        boot = thread.submit(environment.prepare)
        eventually(lambda: any(container.status == "running" for container in engine.containers.values()))
        environment.close()
        assert engine.containers == {}
    assert isinstance(boot.exception(), DesktopError) and engine.containers == {}


def test_no_engine_is_a_desktop_that_does_not_boot(make, engine, monkeypatch, tmp_path):
    environment = make()
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
        with pytest.raises(DesktopBootError, match="DOCKER_HOST.* `docker info` must work"):
            environment.prepare()


def test_an_image_that_is_not_here_is_pulled_before_the_ports_are_locked(client, engine):
    docker_containers.pull_if_missing(client, "another/image")
    assert "another/image" in engine.images
    pulls = [request for request in engine.requests if "/images/create" in request]
    docker_containers.pull_if_missing(client, IMAGE)
    assert len(pulls) == 1 and [request for request in engine.requests if "/images/create" in request] == pulls


def test_the_next_container_of_a_desktop_removes_one_that_could_not_be_stopped(client, engine):
    first = client.containers.run(IMAGE, detach=True)
    engine.stop_fails = True
    with pytest.raises(docker.errors.APIError, match="did not receive an exit event"):
        first.stop()
    second = client.containers.run(IMAGE, detach=True)
    assert list(engine.containers) == [second.id]
    client.remove_containers()
    assert engine.containers == {}


def test_containers_that_vanish_while_they_are_listed_are_no_error(client, engine, monkeypatch):
    client.containers.run(IMAGE, detach=True)
    find = engine._find
    monkeypatch.setattr(engine, "_find", lambda key: find("vanished"))
    with pytest.raises(docker.errors.NotFound):
        docker.from_env().containers.list()
    assert client.containers.list() == []


OWNER = """
import sys, time
from arpo_verl.desktops.osworld import docker_containers
docker_containers.guard_this_process()
client = docker_containers.DesktopDocker.of_desktop(sys.argv[1], {})
client.containers.run(docker_containers.IMAGE, detach=True)
print(docker_containers.this_owner(), flush=True)
time.sleep(600)
"""


def test_a_killed_owner_leaves_no_container_and_others_keep_theirs(client, engine):
    ours = client.containers.run(IMAGE, detach=True)
    with subprocess.Popen([sys.executable, "-c", OWNER, "other"], stdout=subprocess.PIPE, text=True) as process:
        owner = process.stdout.readline().strip()
        assert [c.options["Labels"][OWNER_LABEL] for c in engine.containers.values()] == [
            docker_containers.this_owner(),
            owner,
        ]
        assert not docker_containers.is_dead(owner)
        process.kill()
    eventually(lambda: list(engine.containers) == [ours.id])
    assert docker_containers.is_dead(owner)


def test_the_reaper_waits_for_an_engine_that_is_started_again_and_looks_twice(monkeypatch):
    """It gave up at the first reply that broke off, and missed a container that was still being made."""
    looks = iter([ConnectionError("broken off"), docker.errors.DockerException("no engine"), 2, 0, 1, 0, 0, "too many"])

    def look(owner):
        found = next(looks)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(docker_containers, "remove_of_owner", look)
    monkeypatch.setattr(docker_reaper, "PAUSE_S", 0)
    docker_reaper._remove("an owner")
    assert next(looks) == "too many"


def test_a_desktop_whose_container_has_died_is_not_ready_and_asks_nobody_else(make, engine, monkeypatch):
    """Another desktop's container may have its ports by now."""
    environment = make()
    environment.reset(TASK)
    (container,) = engine.containers.values()
    monkeypatch.setattr(container, "status", "exited")  # the ports go on answering: they are another's
    with pytest.raises(DesktopLostError, match="is gone: its container .* is exited"):
        environment.step(Finish())
    with pytest.raises(DesktopLostError, match="was gone before its task was evaluated"):
        environment.evaluate()
    environment._clean = True
    assert not environment.is_ready()


@pytest.mark.parametrize(("end", "error"), [("power_off", DesktopEndedError), ("stop", DesktopLostError)])
def test_a_machine_that_powers_itself_off_was_ended_by_the_policy_and_one_that_is_stopped_was_not(
    make, engine, end, error
):
    environment = make()
    environment.reset(TASK)
    (container,) = engine.containers.values()
    getattr(container, end)()
    if end == "stop":
        container.exit_code = 0  # a machine that shuts down as the engine asks it to
    with pytest.raises(error):
        environment.step(Finish())


def test_what_the_dead_left_goes_when_the_next_owner_starts(client, engine):
    host, boot, namespace, pid, start = docker_containers.this_owner().split("/")
    dead = ["/".join((host, boot, namespace, pid, "1")), "/".join((host, "an-earlier-boot", namespace, pid, start))]
    namesake = "/".join((host, "another-hosts-boot", namespace, pid, start))
    alive = [
        namesake,
        docker_containers.this_owner(),
        "/".join(("elsewhere", boot, "pid:[1]", pid, "1")),
        "not ours to read",
    ]
    for owner in (*dead, *alive):
        docker.from_env().containers.run(IMAGE, detach=True, labels={OWNER_LABEL: owner, DESKTOP_LABEL: "d"})
    for container in engine.containers.values():
        if "an-earlier-boot" in container.options["Labels"][OWNER_LABEL]:
            container.stop()  # as the host's own stop has
    docker_containers.remove_of_dead_owners()
    assert owners(engine) == alive


@pytest.mark.parametrize(
    ("state", "actions", "proved"),
    [
        ({}, ["die"], True),
        ({}, ["kill", "die"], False),
        ({}, [], False),
        ({"ExitCode": 137}, ["die"], False),
        ({"OOMKilled": True}, ["die"], False),
        ({"Running": True}, [], False),
    ],
    ids=["from inside", "stopped", "the engine was restarted", "killed", "out of memory", "runs"],
)
def test_a_machine_powered_off_by_itself_where_the_engine_saw_it_end_unsignalled(state, actions, proved):
    api = SimpleNamespace(events=lambda **_: iter([{"Action": action} for action in actions]))
    attrs = {"State": {"Running": False, "OOMKilled": False, "ExitCode": 0, **state}}
    names = {"id": "c" * 64, "short_id": "c" * 12}
    container = SimpleNamespace(attrs=attrs, reload=lambda: None, client=SimpleNamespace(api=api), **names)
    assert bool(docker_containers.why_powered_off(container)) is proved
