"""This module notes each metric that OSWorld's evaluator called, its arguments and its result."""

from __future__ import annotations

import contextlib
import functools
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from arpo_verl.types import MetricCall

_shortener = reprlib.Repr()
# This is enough to see why a task scored 0; a whole document or page would fill an episode's record.
_shortener.maxstring = _shortener.maxother = 400
MAX_SHOWN = 4000
_shortener.maxlevel, _shortener.maxlist, _shortener.maxdict = 4, 12, 12


@dataclass(frozen=True)
class NotedMetrics:
    """These are the metrics' arguments and results, in the order of their calls."""

    calls: list[MetricCall] = field(default_factory=list)
    """For people to read."""
    returned: list[Any] = field(default_factory=list)


@contextlib.contextmanager
def noted_metrics(client: Any) -> Iterator[NotedMetrics]:
    """In this block, note the arguments and results of the metrics of `desktop_env.DesktopEnv`.

    Its `evaluate` returns one number and drops the rest.
    """
    noted = NotedMetrics()
    metric = client.metric
    client.metric = [_noted(one, noted) for one in metric] if isinstance(metric, list) else _noted(metric, noted)
    try:
        yield noted
    finally:
        client.metric = metric


def _noted(metric: Callable[..., Any], noted: NotedMetrics) -> Callable[..., Any]:
    @functools.wraps(metric)
    def call(result: Any, *expected: Any, **options: Any) -> Any:
        score = metric(result, *expected, **options)
        wanted = {"expected": expected[0]} if expected else {}
        # Only after the call: a metric's argument may be readable only once.
        noted.returned.append(score)
        noted.calls.append(
            MetricCall(
                getattr(metric, "__name__", str(metric)), _short(result), _short({**wanted, **options}), _short(score)
            )
        )
        return score

    return call


def _short(value: Any) -> str:
    return _shortener.repr(value)[:MAX_SHOWN]
