"""ExGRPO (arXiv 2510.02245): replay tasks of medium difficulty, and of their successes the surest one, gently.

- Which group (section 4.1, `weighted_bucket_sampler.py`): tasks lie in buckets by how many of their latest K rollouts
  succeeded, k; a bucket's weight is a normal density around K / 2 with sigma 1. A task that is solved
  whole is retired, and one that fails whole is in no bucket. The paper draws other tasks than the batch's until they
  fill half of it. Here the batch's tasks are given, so each group is drawn by itself, with its bucket's density over
  the densest one's, and k is that of its own rollouts.
- Which success: the one with the lowest entropy under today's policy. The sampler chooses before the trainer scores, so
  we approximate the entropy by the mean of -log p of the recorded tokens. A success without log-probs is not replayed.
- Where: it takes a failure's place, so the group has K members as in the paper.
- Weight (section 4.2, `mix_core_alg.py`, `p_div_p_0.1`): the ratio w to the policy that wrote the token is shaped to
  w / (w + beta), without clipping. Its gradient is that of w's log times beta * w / (w + beta)^2, our factor.
- The code begins to replay when a batch's success first reaches 35%. We begin at once.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from arpo_verl.lib.config import number
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.groups import Group
from arpo_verl.replay.methods.base import ReplayMethod
from arpo_verl.replay.store.success_store import Candidate, SuccessStore

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ExGrpo(ReplayMethod):
    """Replays where the policy solves about half of its rollouts."""

    only_replaces: ClassVar[bool] = False
    needs_log_probs: ClassVar[bool] = True
    beta: Annotated[float, number(lambda x: x > 0, "more than 0")] = 0.1
    """The shaped ratio is w / (w + beta): a replayed token counts most where its probability has fallen to beta times
    what it was (0.25), and 0.08 where it is as it was."""

    def wants(self, group: Group, config: ReplayConfig, rng: random.Random) -> bool:
        size = len(group.outcomes)
        solved = sum(outcome.success >= config.success_threshold for outcome in group.outcomes)
        return 0 < solved < size and rng.random() < bucket_chance(solved, size)

    def order(
        self, candidates: Sequence[Candidate], store: SuccessStore, step: int, rng: random.Random
    ) -> list[Candidate]:
        surprises = {one.serial: _surprise(store, one) for one in candidates}
        known = [one for one in candidates if surprises[one.serial] is not None]
        return sorted(known, key=lambda one: surprises[one.serial] or 0.0)

    def token_weight(self, ratio: torch.Tensor) -> torch.Tensor:
        return self.beta * ratio / (ratio + self.beta) ** 2


def bucket_chance(solved: int, size: int) -> float:
    """Return the chance that a group is replayed: the normal density of its bucket, over that of the densest one."""
    nearest = size % 2 / 2
    return math.exp((nearest**2 - (solved - size / 2) ** 2) / 2)


def _surprise(store: SuccessStore, candidate: Candidate) -> float | None:
    """Return the mean of -log p of the tokens that the policy wrote; None if nobody recorded it."""
    trajectory = store.trajectory(candidate.serial)
    if trajectory.rollout_log_probs is None:
        return None
    pairs = zip(trajectory.rollout_log_probs, trajectory.response_mask, strict=True)
    written = [log_prob for log_prob, is_written in pairs if is_written]
    return -statistics.fmean(written) if written else None
