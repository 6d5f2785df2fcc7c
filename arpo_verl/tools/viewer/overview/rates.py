"""A rate is how often something happened, with its uncertainty."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from arpo_verl.lib.intervals import wilson_interval
from arpo_verl.records.summaries import EpisodeSummary


@dataclass(frozen=True)
class Rate:
    """This is `count` of `total`, with its 95% interval. Shares are in [0, 1]."""

    count: int
    total: int

    @property
    def share(self) -> float:
        return self.count / self.total if self.total else 0.0

    def document(self) -> dict[str, Any]:
        """Return it for the page. The interval is Wilson's, as if episodes were independent."""
        low, high = wilson_interval(self.share, self.total)
        share = self.share if self.total else None
        return {"count": self.count, "total": self.total, "share": share, "low": low, "high": high}


def success_rate(episodes: Iterable[EpisodeSummary]) -> Rate:
    """Count how many of the evaluated episodes got the full score."""
    scores = [episode.success for episode in episodes if episode.success is not None]
    return Rate(sum(score >= 1 for score in scores), len(scores))
