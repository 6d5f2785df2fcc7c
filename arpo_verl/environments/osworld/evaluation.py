"""One evaluation by OSWorld's unmodified client: its verdict, or the fault that stands behind a score of 0."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

from arpo_verl.environments.osworld.guest_http import clear_exchanges, unanswered
from arpo_verl.environments.osworld.lean_imports import forget_missing, missing_packages
from arpo_verl.environments.osworld.noted_metrics import noted_metrics
from arpo_verl.errors import DesktopLostError, EvaluatorError
from arpo_verl.types import Evaluation

if TYPE_CHECKING:
    from arpo_verl.environments.osworld.client import Client


def evaluate(client: Client, name: str) -> Evaluation:
    """The verdict of the task that `client` was given, and what its metrics saw.

    Args:
        name: the desktop's, for messages.

    Raises:
        DesktopLostError: the guest did not answer, whatever the score.
        EvaluatorError: there is no verdict. Whatever else a getter or a metric raises leaves as it is.
    """
    clear_exchanges()
    forget_missing()
    with noted_metrics(client) as metrics:
        score = client.evaluate()
    # A getter's None, and so a score of 0, may only mean that the guest is gone.
    lost = unanswered(client.address)
    if lost:
        raise DesktopLostError(f"{name} did not answer {lost[0].path}: {lost[0].error}")
    if client.controller.get_screenshot() is None:
        raise DesktopLostError(f"{name} was gone when its task was judged")
    if missing_packages():
        raise EvaluatorError(f"the metric needs {', '.join(missing_packages())}; pip install what it needs")
    return Evaluation(_valid_score(score), tuple(metrics))


def _valid_score(score: Any) -> float:
    if not isinstance(score, Real) or not math.isfinite(score) or not 0 <= float(score) <= 1:
        raise EvaluatorError(f"a metric must return a number from 0 to 1, got {score!r}")
    return float(score)
