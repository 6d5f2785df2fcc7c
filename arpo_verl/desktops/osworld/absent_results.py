"""A result that the policy did not make scores 0, even if a metric cannot handle its absence.

Several getters and metrics raise if a file is missing, and the benchmark's own runner then appends no score. For us an
evaluator that raises is a fault: we retry it and never score it. The exception is a guest that is alive and answers
that the result's file or program is not there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from arpo_verl.desktops.osworld.calls import log
from arpo_verl.desktops.osworld.guest_http import in_trouble, latest, told_by_guest
from arpo_verl.desktops.osworld.swallowed import classify
from arpo_verl.errors import EvaluatorError

Getter = Callable[..., Any]
Metric = Callable[..., Any]


class AbsentResultError(BaseException):
    """A postconfig step needed something that the policy removed: the guest is alive and says that it is not there.

    It is no `Exception`, since the client wraps each `Exception` of a step in one of its own.
    """


def score_absent_results(client: Any) -> None:
    """Wrap the result getters and the metrics of the current task of `client`, a `DesktopEnv`."""
    getter, metric = client.result_getter, client.metric
    if isinstance(metric, list):
        pairs = [_pair(client, *one) for one in zip(getter, metric, strict=True)]
        client.result_getter, client.metric = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    else:
        client.result_getter, client.metric = _pair(client, getter, metric)


class Absence:
    """Notes what the guest, from now on, says is not there.

    Args:
        address: `host:port` of the guest's server.
    """

    def __init__(self, address: str):
        self._address = address
        self._exchanges, self._page_calls = len(log.exchanges), len(log.page_calls)

    def is_told(self) -> bool:
        """Return whether the guest answered, in good health, that something that was requested is not there.

        It may have no such file (404, or 500 with the system's words for it), or one larger than may be fetched. Or a
        program beside its server, VLC or the browser, does not listen or refuses, because it is closed or has other
        settings. A reply that never came, or that reports trouble inside, proves nothing.
        """
        host = self._address.rpartition(":")[0]
        exchanged = latest(log.exchanges[self._exchanges :])
        server = [e for e in exchanged if e.address == self._address]
        programs = [e for e in exchanged if e.address != self._address and e.address.rpartition(":")[0] == host]
        if any(in_trouble(e) and not told_by_guest(e) for e in server):
            return False
        # `requests` calls a refused and a reset connection a ConnectionError; a time-out has a name of its own.
        closed = any(e.error.startswith("ConnectionError:") for e in programs)
        refused = any(e.status not in (None, HTTPStatus.OK) for e in programs)
        no_browser = any(call.browser_is_closed for call in log.page_calls[self._page_calls :][-1:])
        missing = (HTTPStatus.NOT_FOUND, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return closed or refused or no_browser or any(e.status in missing or told_by_guest(e) for e in server)


def _pair(client: Any, getter: Getter | None, metric: Metric) -> tuple[Getter | None, Metric]:
    if getter is None:
        return None, metric
    absent = False
    begin: list[int] = []

    @functools.wraps(getter)
    def get(env: Any, config: Any) -> Any:
        nonlocal absent, begin
        absent, absence = False, Absence(client.address)
        begin = [len(noted) for noted in _noted(client)]
        try:
            state = getter(env, config)
        except Exception as error:
            if not absence.is_told():
                if isinstance(error, FileNotFoundError):  # on this host; the client would score it 0
                    raise EvaluatorError(f"the getter {getter.__name__} found no file on this host: {error}") from error
                raise
            state = None
        found = state if isinstance(state, list) else [state]
        absent = None in found and absence.is_told()
        return state

    @functools.wraps(metric)
    def measure(state: Any, *expected: Any, **options: Any) -> Any:
        if absent and expected and _is_nothing(state) and _is_nothing(expected[0]):
            return 0.0  # both were removed from the desktop: several metrics find two absent files equal
        try:
            score = metric(state, *expected, **options)
        except Exception as error:
            if absent and classify(error) is None:
                return 0.0
            raise
        if client.metric_conj == "or" and score == 1:  # this check decides, whatever failed in those before it
            for noted, length in zip(_noted(client), begin, strict=True):
                del noted[:length]
        return score

    return get, measure


def _noted(client: Any) -> tuple[list[Any], ...]:
    return log.exchanges, log.page_calls, log.swallowed, client.controller.failed_commands


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(one is None for one in value))
