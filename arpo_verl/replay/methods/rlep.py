"""RLEP (arXiv 2507.07451, section 3): stored successes stand beside the fresh rollouts of every group that has one.

A group's mean and sigma are over its G rollouts and the M successes. The paper's store is filled by a run before
(`replay.seed_from`) and stays as it is; ours also takes this run's successes. Paper and code take M = 2. A success with
no gain over its group, such as one beside a group that solved its task whole, would only weaken what the rollouts
teach, so it stays out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, ClassVar

from arpo_verl.lib.config import whole
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import Group
from arpo_verl.replay.methods.base import Context, Replay, ReplayMethod, take_beside
from arpo_verl.replay.store.success_store import Candidate


@dataclass(frozen=True)
class Rlep(ReplayMethod):
    """Adds successes to every group whose task has some, and removes nothing."""

    only_replaces: ClassVar[bool] = False
    most_added: Annotated[int, whole(1)] = 2
    """M: most successes beside a group. Each adds rows to the step: memory and time grow by M / `rollout.n`."""

    @property
    def num_added(self) -> int:
        return self.most_added

    def wants(self, group: Group, config: ReplayConfig, rng: random.Random) -> bool:
        return True

    def place(self, group: Group, queue: list[Candidate], context: Context) -> list[Replay]:
        rewards = [outcome.reward for outcome in group.outcomes]
        added = take_beside(queue, rewards, self.most_added, context)
        return [Replay(group.outcomes[0], candidate, number) for number, candidate in enumerate(added)]
