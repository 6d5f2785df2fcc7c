"""Run one evaluation by OSWorld's unmodified client: return a verdict, or raise the fault behind it.

The client's getters, metrics and controllers catch failures and then score. We accept a verdict only if none of the
errors that they caught was a fault: `guest_http`, `pages` and `swallowed` note them. docs/verdicts.md has the tables.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import reprlib
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, requires
from typing import Any

from arpo_verl.desktops.osworld import pages
from arpo_verl.desktops.osworld.absent_results import AbsentResultError
from arpo_verl.desktops.osworld.apart import commands_apart
from arpo_verl.desktops.osworld.calls import log
from arpo_verl.desktops.osworld.client import Client
from arpo_verl.desktops.osworld.guest_http import in_trouble, latest, told_by_guest, unanswered
from arpo_verl.desktops.osworld.lean_imports import DEFERRED
from arpo_verl.desktops.osworld.swallowed import Swallowed
from arpo_verl.desktops.osworld.task_files import getters_of
from arpo_verl.errors import DesktopError, DesktopLostError, EvaluatorError
from arpo_verl.types import Evaluation, MetricCall, valid_score
from arpo_verl.versions import pip_install

logger = logging.getLogger(__name__)

_shortener = reprlib.Repr()
# This is enough to see why a task scored 0; a whole document or page would fill an episode's record.
_shortener.maxstring = _shortener.maxother = 400
MAX_SHOWN = 4000
_shortener.maxlevel, _shortener.maxlist, _shortener.maxdict = 4, 12, 12

LARGE_SHARE = 0.5
"""An evaluation whose files take this share of a full disk has filled it itself."""


def evaluate(client: Client, name: str, with_share: bool = False) -> Evaluation:
    """Return the verdict of the client's current task, and what its metrics saw.

    Args:
        name: the desktop's, for messages.
        with_share: also run the checks that the verdict does not need.

    Raises:
        DesktopLostError: the guest did not answer, whatever the score.
        EvaluatorError: there is no verdict. Other exceptions of a getter or a metric pass through unchanged.
    """
    log.clear()
    client.controller.failed_commands.clear()
    client.setup_controller.evaluating = True
    share: float | None = None
    metrics: tuple[MetricCall, ...] = ()
    try:
        with commands_apart(), noted_metrics(client) as noted:
            score = client.evaluate()
            if with_share:
                share = share_of_checks(client, valid_score(score), noted.returned)
        metrics = tuple(noted.calls)
    except AbsentResultError:
        score = 0.0
    except Exception as error:
        for fault in faults(client, name):
            raise fault from error
        raise
    finally:
        client.setup_controller.evaluating = False
    for fault in faults(client, name):
        raise fault
    return Evaluation(score, metrics, share)


def faults(client: Client, name: str) -> Iterator[DesktopError]:
    """Yield the faults that make the verdict invalid, the guest's first."""
    yield from _of_guest(client, name)
    yield from _of_pages(client)
    yield from _of_host(client)


def _of_guest(client: Client, name: str) -> Iterator[DesktopError]:
    for lost in unanswered(client.address, log.exchanges):
        if not told_by_guest(lost):
            yield DesktopLostError(f"{name} did not answer {lost.path}: {lost.error or f'{lost.status} {lost.body}'}")
    host = client.address.rpartition(":")[0]
    for e in latest(log.exchanges):
        # A refused or reset connection is a closed program. The relay answers 504 if it cannot reach the guest.
        is_program = e.address != client.address and e.address.rpartition(":")[0] == host
        is_lost = e.status is None and not e.error.startswith("ConnectionError:")
        if is_program and (is_lost or e.status == HTTPStatus.GATEWAY_TIMEOUT):
            came = e.error or e.status
            yield DesktopLostError(f"{name}'s program at {e.address} did not answer {e.path}: {came}")
    for command, result in client.controller.failed_commands:
        yield DesktopLostError(f"{name} could not run the evaluator's own {command[:100]!r}: {str(result)[-300:]}")
    if client.controller.get_screenshot() is None:
        yield DesktopLostError(f"{name} was gone when its task was evaluated")


def _of_pages(client: Client) -> Iterator[DesktopError]:
    task = json.dumps([client.config, client.evaluator], default=str)
    getters = getters_of({"evaluator": client.evaluator})
    with_backups = {one["url"] for one in getters if "url" in one and one.get("backups") is not None}
    for call in pages.failed_calls():
        if call.kind == pages.DRIVER:
            yield EvaluatorError(f"Playwright's driver does not start on this host: {call.error}")
        elif call.kind == pages.CONNECT and not call.browser_is_closed:
            yield DesktopLostError(f"the guest's browser listens, but connecting to it failed: {call.error}")
        # The policy chose a host that the task does not name.
        elif call.host and call.host.removeprefix("www.") in task:
            if call.caller.function == "get_info_from_website" and call.target in with_backups:
                continue
            yield EvaluatorError(f"{call.target} could not be loaded: {call.error}")
    guest = client.address.rpartition(":")[0]
    for exchange in latest(log.exchanges):
        of_guest = exchange.address.rpartition(":")[0] == guest
        if not of_guest and (in_trouble(exchange) or (exchange.status or 0) >= 400):
            came = exchange.error or f"{exchange.status} {exchange.body}"
            yield EvaluatorError(f"{exchange.address} did not answer {exchange.path}: {came}")


def _of_host(client: Client) -> Iterator[DesktopError]:
    folder = str(client.cache_dir)
    for found in log.swallowed:
        if found.kind == "package" and not _is_needed_package(found, folder):
            continue
        if found.kind == "memory" and _memory_is_bounded():
            continue  # what the guest sent did not fit into an evaluation's memory
        if found.kind == "disk" and _fills_its_disk(folder):
            continue
        trouble = f"{found.kind} {found.name}".strip()
        yield EvaluatorError(f"the evaluator ignored a problem of this host ({trouble}): {found.error}")
    if log.missing:
        remedy = pip_install(*(DEFERRED[name] for name in log.missing))
        yield EvaluatorError(f"the metric needs {', '.join(log.missing)}; {remedy}")


def _is_needed_package(found: Swallowed, folder: str) -> bool:
    """Return whether this host should have had a package, unlike a module that the policy wrote or forgot to write."""
    if not os.path.abspath(found.file).startswith(os.path.abspath(folder) + os.sep):
        return True
    return found.name.lower() in _packages_of_client()


def _packages_of_client() -> set[str]:
    """Return the packages of OSWorld's environment whose module has the same name, in lower case."""
    try:
        required = requires("desktop-env") or []
    except PackageNotFoundError:
        required = []
    names = {found[0].lower() for requirement in required if (found := re.match(r"[\w.-]+", requirement))}
    return names | set(DEFERRED) | sys.stdlib_module_names


def _memory_is_bounded() -> bool:
    limits = (resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return any(limit != resource.RLIM_INFINITY for limit in limits)


def _fills_its_disk(folder: str) -> bool:
    """Return whether the evaluation's own files, which the guest sent, fill most of its disk."""
    written = sum(os.lstat(os.path.join(path, name)).st_size for path, _, names in os.walk(folder) for name in names)
    disk = os.statvfs(folder)
    return written >= LARGE_SHARE * disk.f_blocks * disk.f_frsize


# --- The metrics ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NotedMetrics:
    """The metrics' arguments and results, in the order of their calls."""

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
    except Exception as error:  # as for any verdict, `faults` finds a fault behind it
        logger.info("check %d of a failed task raised, and is not met: %r", index, error)
        return 0.0
    try:
        return valid_score(score)
    except EvaluatorError:
        return 0.0
