"""What a program in a Docker desktop reaches: the internet, and nothing that is this host's or another desktop's."""

import logging
import os
import re
import socket
import subprocess

import pytest
from support import ROOT
from support.desktop_harness import eventually

pytest.importorskip("desktop_env")

from arpo_verl.desktops.config import EnvironmentConfig  # noqa: E402
from arpo_verl.desktops.osworld import docker_network  # noqa: E402
from arpo_verl.desktops.osworld.docker_containers import DESKTOP_LABEL  # noqa: E402
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment  # noqa: E402

pytestmark = pytest.mark.docker

PORT = 6379
"""Ray's. All listen there, on all addresses as Ray does."""
SITE, OTHER_HOST, OWN_PUBLIC = "192.0.2.2", "10.9.8.7", "203.0.113.5"
"""A site of the internet, a host of the cluster's network, an address of this host that is no private one."""
SERVE = f"import http.server as h; h.test(h.SimpleHTTPRequestHandler, port={PORT}, bind='0.0.0.0')"


@pytest.fixture(scope="module")
def world(engine):
    """This host listens, and routes to another that is both the site and the cluster's other host."""
    words = ["unshare", "--net", "python3", "-c", SERVE]
    other = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/var/lib")
    inside = f"nsenter --net --target={other.pid} "
    try:
        ours = os.readlink("/proc/thread-self/ns/net")
        eventually(lambda: os.readlink(f"/proc/{other.pid}/ns/net") != ours)
        for command in (
            f"ip link add ours type veth peer name theirs netns {other.pid}",
            "ip addr add 192.0.2.1/24 dev ours",
            f"ip addr add {OWN_PUBLIC}/32 dev lo",
            "ip link set ours up",
            f"{inside} ip addr add {SITE}/24 dev theirs",
            f"{inside} ip addr add {OTHER_HOST}/32 dev theirs",
            f"{inside} ip link set theirs up",
            f"ip route add {OTHER_HOST} via {SITE}",
        ):
            subprocess.run(command.split(), check=True)
        with socket.create_server(("0.0.0.0", PORT)):
            eventually(lambda: _is_open(SITE) and _is_open(OTHER_HOST) and _is_open(OWN_PUBLIC))
            yield
    finally:
        other.kill()
        other.wait()


def _is_open(address):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, PORT)) == 0


@pytest.fixture
def boot(engine, world, vm):
    made = []

    def build(**options):
        config = EnvironmentConfig(
            provider="docker", screen_size=(1920, 1080), path_to_vm=str(vm), provider_options=options
        )
        made.append(OSWorldEnvironment(config))
        made[-1].prepare()
        return made[-1]

    yield build
    for environment in made:
        environment.close()


def settings(engine, environment):
    """The container's address, its host's, and the port of the host's loopback by which its guest is reached."""
    (container,) = engine.client.containers.list(filters={"label": f"{DESKTOP_LABEL}={environment._id}"})
    (network,) = container.attrs["NetworkSettings"]["Networks"].values()
    published = container.attrs["NetworkSettings"]["Ports"]["5000/tcp"][0]["HostPort"]
    return network["IPAddress"], network["Gateway"], int(published)


def reaches(environment, *places):
    """Which of these addresses and ports a program in the desktop can connect to."""
    lines = [f"timeout 3 bash -c ': <> /dev/tcp/{address}/{port}' && echo {address}:{port}" for address, port in places]
    output = environment._client.controller.run_bash_script("; ".join(lines))["output"].splitlines()
    return [f"{address}:{port}" for address, port in places if f"{address}:{port}" in output]


def test_a_desktop_reaches_the_internet_and_neither_host_nor_neighbour_nor_cluster(engine, boot):
    desktop, neighbour = boot(), boot(private_networks=[f"{OTHER_HOST}/32"])
    (own_ip, host, _), (other, _, published) = settings(engine, desktop), settings(engine, neighbour)
    forbidden = [(other, 5000), (host, PORT), (OWN_PUBLIC, PORT), (host, published), (OTHER_HOST, PORT)]
    assert reaches(desktop, *forbidden, (SITE, PORT)) == [f"{SITE}:{PORT}"]
    wanted = reaches(neighbour, (own_ip, 5000), (host, PORT), (OWN_PUBLIC, PORT), (OTHER_HOST, PORT), (SITE, PORT))
    assert wanted == [f"{OTHER_HOST}:{PORT}", f"{SITE}:{PORT}"], "what private_networks names is open"
    assert desktop._client.controller.get_screenshot(), "its host reaches it"


def test_dockers_own_bridge_lets_all_of_that_through(engine, boot):
    """So the test above tests something."""
    desktop, neighbour = boot(network="bridge"), boot(network="bridge")
    (_, host, _), (other, _, published) = settings(engine, desktop), settings(engine, neighbour)
    open_ = [(other, 5000), (host, PORT), (OWN_PUBLIC, PORT), (OTHER_HOST, PORT), (SITE, PORT)]
    assert reaches(desktop, *open_) == [f"{address}:{port}" for address, port in open_]
    assert reaches(desktop, (host, published)) == [], "published on the host's loopback alone"


def test_an_image_without_iptables_is_told_and_still_reaches_no_neighbour(engine, boot, monkeypatch, caplog):
    monkeypatch.setattr(docker_network, "_rules", lambda allowed: ["no-such-iptables -N X"])
    docker_network._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        desktop, neighbour = boot(), boot()
    (warning,) = [record.getMessage() for record in caplog.records if "private networks" in record.getMessage()]
    assert "no-such-iptables" in warning and "docs/providers.md" in warning
    (_, host, _), (other, _, _) = settings(engine, desktop), settings(engine, neighbour)
    assert reaches(desktop, (other, 5000), (host, PORT)) == [f"{host}:{PORT}"]


def test_the_hosts_own_rules_hold_too(engine, boot, monkeypatch):
    """Those of docs/providers.md, for an image whose filter cannot be had."""
    monkeypatch.setattr(docker_network, "_rules", lambda allowed: ["true"])
    rules = _documented()
    assert all(any(network in rule for rule in rules) for network in docker_network.PRIVATE)
    for rule in rules:
        subprocess.run(rule.split(), check=True)
    try:
        desktop = boot()
        _, host, _ = settings(engine, desktop)
        places = [(host, PORT), (OWN_PUBLIC, PORT), (OTHER_HOST, PORT), (SITE, PORT)]
        assert reaches(desktop, *places) == [f"{SITE}:{PORT}"]
    finally:
        for rule in rules:
            subprocess.run(rule.replace(" -I ", " -D ").split(), check=True)


def _documented():
    """The commands of the docs, its loop unrolled."""
    block = next(part for part in (ROOT / "docs/providers.md").read_text().split("```") if "DOCKER-USER" in part)
    networks = re.search(r"for net in (.*); do", block)[1].split()
    rules = [line.strip() for line in block.splitlines() if line.strip().startswith("iptables")]
    return [rules[0].replace("$net", network) for network in networks] + rules[1:]
