"""Give Docker desktops a network: their programs reach the internet, but neither each other, nor this
host, nor private networks such as the one that Ray's nodes share.

Docker's own bridge lets all of that through. So desktops get a bridge on which containers do not talk to each other,
and each container a filter in its own network namespace, set by a command that runs in it. What the policy types runs
in the virtual machine behind that filter. We leave the host's own firewall alone: `docs/providers.md` has rules for it,
by the bridge's name.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
import socket
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import docker
import psutil
from docker.errors import APIError, DockerException
from docker.models.containers import Container

logger = logging.getLogger(__name__)

NETWORK = "arpo-verl-desktops"
BRIDGE = "arpo-desktops"
"""The host's interface; a host's own firewall rules can name it."""
ALLOWED = "private_networks"
"""The option of `environment.provider_options` that lists private networks which desktops may reach."""
PRIVATE = (
    *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15"),
    "169.254.0.0/16",  # clouds answer there with the machine's credentials
)
_OPTIONS = {"com.docker.network.bridge.enable_icc": "false", "com.docker.network.bridge.name": BRIDGE}
_LABELS = {"arpo_verl.network": "desktops"}
_CHAIN = "ARPO"


def options_for(options: dict[str, Any], client: docker.DockerClient) -> dict[str, Any]:
    """Add the desktops' network to the options of `containers.run`, unless they name one; create it if missing."""
    if "network" in options or "network_mode" in options:
        return options
    if not client.api.networks(names=[f"^{NETWORK}$"]):
        try:
            client.api.create_network(NETWORK, "bridge", _OPTIONS, labels=_LABELS, check_duplicate=True)
        except APIError as error:
            if error.status_code not in (HTTPStatus.CONFLICT, HTTPStatus.FORBIDDEN):  # another process was faster
                raise
    return {**options, "network": NETWORK}


def seal(container: Container, allowed: Iterable[str]) -> None:
    """Make the container drop what its programs send to this host and to private networks, except to `allowed`.

    Answers to outside requests pass, such as those to the published ports, and so does DNS. It logs a warning if the
    image has no iptables. If the container has already ended, its starter must notice that.
    """
    script = "\n".join(["set -e", "PATH=$PATH:/usr/sbin:/sbin", *_rules(allowed)])
    try:
        status, output = container.exec_run(["sh", "-c", script], user="root")
    except DockerException as error:
        logger.debug("the container %s has no filter: %s", container.short_id, error)
        return
    if status:
        _warn(output.decode(errors="replace").strip()[-500:])


def _rules(allowed: Iterable[str]) -> list[str]:
    pass_, refuse = f"iptables -A {_CHAIN} -j RETURN", f"iptables -A {_CHAIN} -j REJECT"
    return [
        f"iptables -N {_CHAIN}",
        f"{pass_} -m conntrack --ctstate ESTABLISHED,RELATED",
        *(f"{pass_} -p {protocol} --dport 53" for protocol in ("udp", "tcp")),
        *(f"{pass_} -d {network}" for network in allowed),
        *(f"{refuse} -d {network}" for network in (*PRIVATE, *_own_addresses())),
        # For the container's own programs, and for the machine in it.
        *(f"iptables -I {chain} -o eth0 -j {_CHAIN}" for chain in ("OUTPUT", "FORWARD")),
    ]


def _own_addresses() -> list[str]:
    """Return this host's public addresses: programs that listen on all addresses listen on these too."""
    private = [ipaddress.IPv4Network(network) for network in (*PRIVATE, "127.0.0.0/8")]
    found = {
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET
    }
    return sorted(a for a in found if not any(ipaddress.IPv4Address(a) in network for network in private))


@functools.cache
def _warn(words: str) -> None:
    """Warn once for each reason, not at every reset of every desktop."""
    logger.warning(
        "programs in this host's Docker desktops can reach this host and private networks, Ray's ports among them: "
        "the image's iptables did not run (%s). Give the host its own rules, see docs/providers.md",
        words,
    )
