"""FreshPER (arXiv 2604.16918): ARPO's groups, and the newer a success, the likelier it is replayed.

The priority (|r| + 1e-6) * exp(-age / tau) is that of the authors' code (`reward_fresh_priority`, tau = 500), which
counts age in its global steps. We count training steps. The paper multiplies any priority by the same decay.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from arpo_verl.lib.config import number
from arpo_verl.replay.methods.arpo import Arpo
from arpo_verl.replay.methods.base import weighted_order
from arpo_verl.replay.store.success_store import Candidate, SuccessStore

_LEAST, _OLDEST = 1e-6, 600.0


@dataclass(frozen=True)
class Fresh(Arpo):
    """Draws a task's successes by reward and age instead of alike."""

    tau: Annotated[float, number(lambda steps: steps > 0, "more than 0 training steps")] = 500.0
    """Age in training steps at which a success's weight has fallen to 1/e. 500 is the paper's. A run of fewer steps
    needs a smaller one for the decay to matter."""

    def order(
        self, candidates: Sequence[Candidate], store: SuccessStore, step: int, rng: random.Random
    ) -> list[Candidate]:
        return weighted_order(candidates, [self.priority(one, step) for one in candidates], rng)

    def priority(self, candidate: Candidate, step: int) -> float:
        """Return the weight of a success at a training step."""
        age = max(0, step - candidate.step)
        return (abs(candidate.reward) + _LEAST) * math.exp(-min(age / self.tau, _OLDEST))
