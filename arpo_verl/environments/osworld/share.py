"""Partial credit: the share of an evaluator's checks that a desktop meets.

`DesktopEnv.evaluate` goes through a list of checks. With `conj: and` it ends with 0 at the first that returns 0, so
those behind it are made here, after the verdict, on the same desktop.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from arpo_verl.errors import DesktopError, EvaluatorError

if TYPE_CHECKING:
    from arpo_verl.environments.osworld.client import Client

logger = logging.getLogger(__name__)


def share_of_checks(client: Client, score: float, returned: Sequence[Any]) -> float:
    """The mean of all checks of the task that `client` has just judged, in [0, 1].

    The score itself where it is more than 0, where one check would have been enough (`conj: or`), where there is one
    check, and where the agent gave up.

    Args:
        score: the verdict.
        returned: what the metrics returned on the way to it.

    Raises:
        DesktopError: the desktop did not answer, or a metric that the verdict waited for returned no score.
    """
    gave_up = client.action_history[-1:] == ["FAIL"]
    if score > 0 or gave_up or not isinstance(client.metric, list) or client.metric_conj != "and":
        return score
    scores = [valid_score(one) for one in returned]
    scores += [_check(client, index) for index in range(len(scores), len(client.metric))]
    return sum(scores) / len(scores)


def _check(client: Client, index: int) -> float:
    """One check as the client makes it. One that raises or gives no score is not met: an unmet one before it would have
    spared it."""
    evaluator = client.evaluator
    try:
        result = client.result_getter[index](client, evaluator["result"][index])
        expected: list[Any] = []
        if evaluator.get("expected") and client.expected_getter:
            expected = [client.expected_getter[index](client, evaluator["expected"][index])]
        score = client.metric[index](result, *expected, **client.metric_options[index])
    except DesktopError:
        raise
    except Exception as error:  # a fault behind it is found as behind any verdict
        logger.info("check %d of a failed task raised, and is not met: %r", index, error)
        return 0.0
    return float(score) if is_score(score) else 0.0


def valid_score(score: Any) -> float:
    """What a metric returned, as a score.

    Raises:
        EvaluatorError: it is no number from 0 to 1.
    """
    if not is_score(score):
        raise EvaluatorError(f"a metric must return a number from 0 to 1, got {score!r}")
    return float(score)


def is_score(value: Any) -> bool:
    """Whether it is a number from 0 to 1."""
    return isinstance(value, Real) and math.isfinite(value) and 0 <= float(value) <= 1
