"""What the guest says is not there, the policy did not make: a metric that cannot take that judges it 0.

Several getters and metrics raise where a file is missing, and the benchmark's own runner then appends no score. Here an
evaluator that raises is a fault, retried and never scored, unless the guest itself, alive, answered that the result's
file or program is not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from arpo_verl.environments.osworld.guest_http import Exchange, exchanges
from arpo_verl.errors import EvaluatorError

Getter = Callable[..., Any]
Metric = Callable[..., Any]


def judge_absent_results(client: Any) -> None:
    """Wrap the result getters and the metrics of the task that `client`, a `DesktopEnv`, was given."""
    getter, metric = client.result_getter, client.metric
    if isinstance(metric, list):
        pairs = [_pair(client, *one) for one in zip(getter, metric, strict=True)]
        client.result_getter, client.metric = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    else:
        client.result_getter, client.metric = _pair(client, getter, metric)


def says_absent(exchanged: Sequence[Exchange], address: str) -> bool:
    """Whether the guest at `address` answered, in good health, that something that it was asked for is not there.

    Either it has no such file (404), or no program listens at a port beside its server's: VLC's, while VLC is closed.
    A reply that never came, or that tells of trouble inside, says nothing.
    """
    host = address.rpartition(":")[0]
    server = [e for e in exchanged if e.address == address]
    programs = [e for e in exchanged if e.address != address and e.address.rpartition(":")[0] == host]
    if any(e.status is None or e.status >= HTTPStatus.INTERNAL_SERVER_ERROR for e in server):
        return False
    # `requests` calls a refused and a reset connection a ConnectionError; a time-out has a name of its own.
    closed = any(e.status is None and e.error.startswith("ConnectionError:") for e in programs)
    return closed or any(e.status == HTTPStatus.NOT_FOUND for e in server)


def _pair(client: Any, getter: Getter | None, metric: Metric) -> tuple[Getter | None, Metric]:
    if getter is None:
        return None, metric
    absent = False

    @functools.wraps(getter)
    def get(env: Any, config: Any) -> Any:
        nonlocal absent
        absent, before = False, len(exchanges())
        try:
            state = getter(env, config)
        except Exception as error:
            if not says_absent(exchanges()[before:], client.address):
                if isinstance(error, FileNotFoundError):  # on this host; the client would score it 0
                    raise EvaluatorError(f"the getter {getter.__name__} found no file on this host: {error}") from error
                raise
            state = None
        found = state if isinstance(state, list) else [state]
        absent = None in found and says_absent(exchanges()[before:], client.address)
        return state

    @functools.wraps(metric)
    def judge(state: Any, *expected: Any, **options: Any) -> Any:
        try:
            return metric(state, *expected, **options)
        except Exception:
            if absent:
                return 0.0
            raise

    return get, judge
