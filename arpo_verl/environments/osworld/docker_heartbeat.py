"""This module finds dead owners of containers whose process we cannot see: in another pod or on another host.

A process in another namespace has no number here, so it may be alive though we do not see it. So each owner keeps a
sign of life in the engine itself, where all who start containers can see it: an empty volume, labelled with its name,
which it keeps replacing by a new one. If others see the same sign too often in a row, they take its owner for dead. No
clocks are compared.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import defaultdict
from collections.abc import Callable

import docker
import requests
from docker.errors import DockerException

logger = logging.getLogger(__name__)

BEAT_S = 30.0
"""How often an owner renews its sign."""
LOOKS = 4
"""An owner is dead if so many looks in a row, a beat apart, find the same sign. After an engine was down the count
starts again, so that its owners have as long to come back."""
OWNER_LABEL = "arpo_verl.owner"
BEATS_LABEL = "arpo_verl.beats"
"""The label of containers whose owner has a sign of life; `look` ignores all others."""


class Heartbeat:
    """This object gives this process's sign of life and watches those of others.

    Args:
        owner: this process.
        is_elsewhere: whether an owner cannot be seen from here.
        remove: removes an owner's containers.
    """

    def __init__(self, owner: str, is_elsewhere: Callable[[str], bool], remove: Callable[[str], object]):
        self._owner = owner
        self._is_elsewhere = is_elsewhere
        self._remove = remove
        self._beats = 0
        self._seen: dict[str, tuple[frozenset[str], int]] = {}
        """For each owner elsewhere: its sign, and how many looks in a row have found it."""
        self._stopped = threading.Event()

    def start(self) -> None:
        """Give the first sign, then go on in a thread of its own.

        Raises:
            docker.errors.DockerException: no engine answers.
        """
        self.beat()
        threading.Thread(target=self._run, daemon=True, name="docker-heartbeat").start()

    def close(self) -> None:
        """End it; the sign stays until the reaper, or another owner, removes it."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_S):
            try:
                self.beat()
                self.look()
            except (DockerException, requests.RequestException) as error:
                self._seen.clear()
                logger.warning("no sign of life could be left with the Docker engine: %s", error)

    def beat(self) -> None:
        """Replace the sign by a new one."""
        self._beats += 1
        name = f"arpo_verl-alive-{hashlib.sha256(self._owner.encode()).hexdigest()[:16]}-{self._beats}"
        client = docker.from_env()
        try:
            client.volumes.create(name=name, labels={OWNER_LABEL: self._owner})
            remove_signs(client, self._owner, but=name)
        finally:
            client.close()

    def look(self) -> None:
        """Remove the containers of owners whose sign has not changed for long."""
        client = docker.from_env()
        try:
            signs: defaultdict[str, set[str]] = defaultdict(set)
            for volume in client.volumes.list(filters={"label": OWNER_LABEL}):
                signs[(volume.attrs.get("Labels") or {})[OWNER_LABEL]].add(volume.name)
            owners = set(signs)
            for container in client.containers.list(all=True, filters={"label": BEATS_LABEL}, ignore_removed=True):
                owners.add(container.labels[OWNER_LABEL])
            elsewhere = {owner for owner in owners if self._is_elsewhere(owner)}
            self._seen = {owner: self._count(owner, frozenset(signs[owner])) for owner in elsewhere}
            for owner, (_, looks) in self._seen.items():
                if looks >= LOOKS:
                    logger.warning("removing the containers of %s, which has given no sign of life for long", owner)
                    self._remove(owner)
        finally:
            client.close()

    def _count(self, owner: str, sign: frozenset[str]) -> tuple[frozenset[str], int]:
        before, looks = self._seen.get(owner, (None, 0))
        return sign, looks + 1 if sign == before else 1


def remove_signs(client: docker.DockerClient, owner: str, but: str = "") -> None:
    """Remove an owner's signs of life, `but` one."""
    for volume in client.volumes.list(filters={"label": f"{OWNER_LABEL}={owner}"}):
        if volume.name != but:
            try:
                volume.remove()
            except docker.errors.NotFound:
                logger.debug("the sign %s is gone already", volume.name)
