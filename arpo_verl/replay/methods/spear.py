"""SPEAR (arXiv 2509.22601, self-imitation with recalibrated advantages): recent successes are rows of their own.

- Advantage (paper): r - P50(D), where D holds the mean rewards of the last groups; only if it is above 0. The authors'
  code divides by the median of the groups' sigmas where GRPO divides. We take the paper's: of groups that are solved
  whole, that median is 0.
- Age (code: `tolerate_steps`): at most 10 training steps.
- Weight (code: `max_replay_loss_steps`): (1 - cos(pi * step / warm_up_steps)) / 2, then 1.
- The paper's buffer gives successes of any task, in an update of their own. Here each stands beside a group of its own
  task, in the same update. We leave out its clipping by covariance and its rewards for calling tools.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from arpo_verl.lib.config import whole
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import Group
from arpo_verl.replay.methods.base import Context, Replay, ReplayMethod, take_beside
from arpo_verl.replay.store.success_store import Candidate, SuccessStore


@dataclass(frozen=True)
class Spear(ReplayMethod):
    """Imitates recent successes that are above what the policy reaches, also beside groups that are solved."""

    only_replaces: ClassVar[bool] = False
    most_added: Annotated[int, whole(1)] = 1
    """Most successes beside a group."""
    max_age: Annotated[int, whole(1)] = 10
    """Most training steps since the rollout. Seeds of `arpo-verl replay seed` count as of step 0; those of another
    run's checkpoint keep their steps, and none is used before its own."""
    warm_up_steps: Annotated[int, whole(0)] = 100
    """Training steps over which the weight rises from 0 to 1; 0 for a weight of 1 from the start. The authors' run on
    ALFWorld has 100."""
    num_baselines: Annotated[int, whole(1)] = 1280
    """Groups whose mean rewards make the median. The authors keep those of 10,240 rollouts, in groups of 8."""

    @property
    def num_added(self) -> int:
        return self.most_added

    def wants(self, group: Group, config: ReplayConfig, rng: random.Random) -> bool:
        return True

    def order(
        self, candidates: Sequence[Candidate], store: SuccessStore, step: int, rng: random.Random
    ) -> list[Candidate]:
        recent = [one for one in candidates if 0 <= step - one.step <= self.max_age]
        return super().order(recent, store, step, rng)

    def place(self, group: Group, queue: list[Candidate], context: Context) -> list[Replay]:
        baseline = statistics.median([*context.store.memory, *map(_mean_reward, context.groups)][-self.num_baselines :])
        added = take_beside(queue, [baseline], self.most_added, context)
        weight = self.weight(context.step)
        return [
            Replay(group.outcomes[0], one, number, weight * (one.reward - baseline)) for number, one in enumerate(added)
        ]

    def weight(self, step: int) -> float:
        """Return the weight of imitation in a training step, from 0 to 1."""
        return 1.0 if step >= self.warm_up_steps else (1 - math.cos(math.pi * step / self.warm_up_steps)) / 2

    def remember(self, groups: Sequence[Group], memory: list[float]) -> None:
        memory += map(_mean_reward, groups)
        del memory[: -self.num_baselines]


def _mean_reward(group: Group) -> float:
    return statistics.fmean(outcome.reward for outcome in group.outcomes)
