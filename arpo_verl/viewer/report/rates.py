"""How often something came out, and how sure one may be of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from arpo_verl.intervals import Interval, wilson_interval
from arpo_verl.records.summaries import EpisodeSummary


@dataclass(frozen=True)
class Rate:
    """`count` of `total`, with its 95% interval. Shares are in [0, 1]."""

    count: int
    total: int

    @property
    def share(self) -> float:
        return self.count / self.total if self.total else 0.0

    @property
    def interval(self) -> Interval:
        """As if the episodes were independent; those of one task are less so."""
        return wilson_interval(self.share, self.total)


def success_rate(episodes: Iterable[EpisodeSummary]) -> Rate:
    """How many the evaluator gave the full score, of those that it evaluated."""
    scores = [episode.success for episode in episodes if episode.success is not None]
    return Rate(sum(score >= 1 for score in scores), len(scores))
