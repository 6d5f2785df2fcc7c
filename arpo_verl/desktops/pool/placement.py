"""Which node gets which desktops. Pure; `ray.nodes()` comes in as plain values.

A node offers desktops by its own resource, `docker:<ip>` by convention, and each desktop takes one unit of it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.errors import ConfigError

Node = Mapping[str, Any]
"""An entry of `ray.nodes()`."""


@dataclass(frozen=True)
class Offer:
    """A live node offers `units` of `resource`, one for each desktop."""

    node_id: str
    resource: str
    units: int


@dataclass(frozen=True)
class Placement:
    """A worker process to start: its slots, and its node's offer; with None, Ray chooses the node."""

    slots: tuple[int, ...]
    offer: Offer | None = None


def read_offers(nodes: Iterable[Node], prefix: str) -> list[Offer] | None:
    """Return what the live nodes offer by resources whose names begin with `prefix`.

    None if desktops need no offer: without a prefix, and on a single node without such a resource, since there is
    nothing to choose.
    """
    live = [node for node in nodes if node["Alive"]]
    offers = [
        Offer(node["NodeID"], name, int(units))
        for node in live
        for name, units in sorted(node["Resources"].items())
        if prefix and name.startswith(prefix) and units >= 1
    ]
    offers.sort(key=lambda offer: (offer.resource, offer.node_id))  # Ray lists its nodes in any order
    return None if not prefix or (not offers and len(live) == 1) else offers


def place(
    slots: Sequence[int], offers: Sequence[Offer] | None, used: Mapping[Offer, int], desktops_per_worker: int
) -> list[Placement]:
    """Share `slots` among the offers in proportion to their units, in worker processes of `desktops_per_worker`.

    If too few units are left, some slots get no placement.

    Args:
        used: units that this pool's desktops already take.
    """
    if offers is None:
        return [Placement(group) for group in _groups(slots, desktops_per_worker)]
    taken, hosted = Counter(dict(used)), defaultdict(list)
    for slot in slots:
        free = [offer for offer in offers if taken[offer] < offer.units]
        if not free:
            break
        emptiest = min(free, key=lambda offer: (taken[offer] + 1) / offer.units)
        taken[emptiest] += 1
        hosted[emptiest].append(slot)
    return [Placement(group, offer) for offer in hosted for group in _groups(hosted[offer], desktops_per_worker)]


def check_cluster(config: EnvironmentConfig, nodes: Iterable[Node]) -> None:
    """Refuse a cluster that can never hold the recipe's desktops.

    Raises:
        ConfigError: it offers fewer units than `num_desktops`, or too little of `worker_resources`; the message says
            what each node offers, and how to start nodes that offer more.
    """
    nodes = [node for node in nodes if node["Alive"]]
    offers = read_offers(nodes, config.host_prefix)
    if offers is not None and sum(offer.units for offer in offers) < config.num_desktops:
        raise ConfigError(
            f"environment.num_desktops={config.num_desktops} needs {config.num_desktops} units of {config.host_prefix}"
            f"<ip> in the Ray cluster, which offers {describe(nodes, offers)}; {_remedy(config, nodes)}"
        )
    num_workers = math.ceil(config.num_desktops / config.desktops_per_worker)
    for name, amount in config.worker_resources.items():
        room = sum(int(node["Resources"].get(name, 0) / amount) for node in nodes) if amount else num_workers
        if room < num_workers:
            raise ConfigError(
                f"the Ray cluster needs room for {num_workers} desktop workers of environment.worker_resources.{name}="
                f"{amount:g} each, but has room for {room} on {len(nodes)} nodes; start more nodes with this resource, "
                "or lower environment.num_desktops"
            )


def describe(nodes: Sequence[Node], offers: Sequence[Offer]) -> str:
    """Describe the cluster's offers, for a message."""
    named = ", ".join(f"{offer.resource}: {offer.units}" for offer in offers) or "none"
    silent = sum(node["Alive"] for node in nodes) - len({offer.node_id for offer in offers})
    return f"{sum(offer.units for offer in offers)} ({named}" + (f"; {silent} nodes offer none)" if silent else ")")


def _remedy(config: EnvironmentConfig, nodes: Sequence[Node]) -> str:
    address = nodes[0]["NodeManagerAddress"] if nodes else "<ip>"
    each = math.ceil(config.num_desktops / max(1, len(nodes)))
    return (
        f"""start each desktop node with `ray start ... --resources='{{"{config.host_prefix}{address}": {each}}}'` """
        "(with its own address), lower environment.num_desktops, or set environment.host_resource='' to use any node"
    )


def _groups(slots: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(slots[first : first + size]) for first in range(0, len(slots), size)]
