"""This module computes partial credit: the share of an evaluator's checks that a desktop passes.

`DesktopEnv.evaluate` goes through a list of checks. With `conj: and` it stops with 0 at the first check that returns 0.
So we run the remaining checks here, after the verdict, on the same desktop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from arpo_verl.environments.osworld.client import Client
from arpo_verl.errors import DesktopError, EvaluatorError
from arpo_verl.types import valid_score

logger = logging.getLogger(__name__)


def share_of_checks(client: Client, score: float, returned: Sequence[Any]) -> float:
    """Return the mean of all checks of the task that `client` has just evaluated, in [0, 1].

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
