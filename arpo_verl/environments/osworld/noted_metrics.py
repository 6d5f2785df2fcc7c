"""What OSWorld's evaluator saw: each metric that it called, with what, and what came of it."""

from __future__ import annotations

import contextlib
import functools
import reprlib
from collections.abc import Callable, Iterator
from typing import Any

from arpo_verl.types import MetricCall

_shortener = reprlib.Repr()
# Enough to see why a task scored 0; a whole document or page would fill the record of an episode.
_shortener.maxstring = _shortener.maxother = 400
_shortener.maxlevel, _shortener.maxlist, _shortener.maxdict = 4, 12, 12


@contextlib.contextmanager
def noted_metrics(client: Any) -> Iterator[list[MetricCall]]:
    """Within the block, the metrics of `desktop_env.DesktopEnv` write down what they are given and return.

    Its `evaluate` returns one number and drops the rest.
    """
    calls: list[MetricCall] = []
    metric = client.metric
    client.metric = [_noted(one, calls) for one in metric] if isinstance(metric, list) else _noted(metric, calls)
    try:
        yield calls
    finally:
        client.metric = metric


def _noted(metric: Callable[..., Any], calls: list[MetricCall]) -> Callable[..., Any]:
    @functools.wraps(metric)
    def call(result: Any, *expected: Any, **options: Any) -> Any:
        score = metric(result, *expected, **options)
        wanted = {"expected": expected[0]} if expected else {}
        # Only after the call: a metric may be handed what can be read once.
        calls.append(
            MetricCall(
                getattr(metric, "__name__", str(metric)), _short(result), _short({**wanted, **options}), _short(score)
            )
        )
        return score

    return call


def _short(value: Any) -> str:
    return _shortener.repr(value)
