"""How often something came out, and how sure one may be of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

from arpo_verl.records.summaries import EpisodeSummary

_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Rate:
    """`count` of `total`, with its 95% interval. Shares are in [0, 1]."""

    count: int
    total: int

    @property
    def share(self) -> float:
        return self.count / self.total if self.total else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval, as if the episodes were independent; those of one task are less so.

        Source: Wilson (1927), as in Brown, Cai and DasGupta (2001), who recommend it for few trials.
        """
        if not self.total:
            return 0.0, 1.0
        n, z2 = self.total, _Z * _Z
        centre = (self.share + z2 / (2 * n)) / (1 + z2 / n)
        margin = _Z / (1 + z2 / n) * ((self.share * (1 - self.share) + z2 / (4 * n)) / n) ** 0.5
        return max(0.0, centre - margin), min(1.0, centre + margin)


def success_rate(episodes: Iterable[EpisodeSummary]) -> Rate:
    """How many the evaluator gave the full score, of those that it evaluated."""
    scores = [episode.success for episode in episodes if episode.success is not None]
    return Rate(sum(score >= 1 for score in scores), len(scores))
