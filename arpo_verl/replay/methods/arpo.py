"""ARPO (arXiv 2505.16282, section 3.3): a group that failed whole gets one stored success in a failure's place."""

from __future__ import annotations

import random
from dataclasses import dataclass

from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import Group
from arpo_verl.replay.methods.base import ReplayMethod


@dataclass(frozen=True)
class Arpo(ReplayMethod):
    """Replays only where all failed. It has no options of its own."""

    def wants(self, group: Group, config: ReplayConfig, rng: random.Random) -> bool:
        return group.all_failed(config)
