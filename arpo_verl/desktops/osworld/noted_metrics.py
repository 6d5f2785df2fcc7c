"""The metrics that OSWorld's evaluator calls: note each with its arguments and result, and run those that it spared."""

from __future__ import annotations

import contextlib
import functools
import logging
import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from arpo_verl.desktops.osworld.client import Client
from arpo_verl.errors import DesktopError, EvaluatorError
from arpo_verl.types import MetricCall, valid_score

logger = logging.getLogger(__name__)

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


def share_of_checks(client: Client, score: float, returned: Sequence[Any]) -> float:
    """Return partial credit: the mean of all checks of the task that `client` has just evaluated, in [0, 1].

    With `conj: and`, `DesktopEnv.evaluate` stops with 0 at the first check that returns 0. So we run the remaining
    checks here, after the verdict, on the same desktop.

    It returns the score itself if that is more than 0, if one check would have been enough (`conj: or`), if there is
    only one check, or if the agent gave up.

    Args:
        score: the verdict.
        returned: what the metrics returned for it.

    Raises:
        DesktopError: the desktop did not answer, or a metric that the verdict needed returned no score.
    """
    gave_up = client.action_history[-1:] == ["FAIL"]
    if score > 0 or gave_up or not isinstance(client.metric, list) or client.metric_conj != "and":
        return score
    scores = [valid_score(one) for one in returned]
    scores += [_check(client, index) for index in range(len(scores), len(client.metric))]
    return sum(scores) / len(scores)


def _check(client: Client, index: int) -> float:
    """Run one check as the client does. A check that raises or gives no score is not passed, because an earlier failed
    check would have spared it."""
    evaluator = client.evaluator
    try:
        result = client.result_getter[index](client, evaluator["result"][index])
        expected: list[Any] = []
        if evaluator.get("expected") and client.expected_getter:
            expected = [client.expected_getter[index](client, evaluator["expected"][index])]
        score = client.metric[index](result, *expected, **client.metric_options[index])
    except DesktopError:
        raise
    except Exception as error:  # as for any verdict, `evaluation.faults` finds a fault behind it
        logger.info("check %d of a failed task raised, and is not met: %r", index, error)
        return 0.0
    try:
        return valid_score(score)
    except EvaluatorError:
        return 0.0
