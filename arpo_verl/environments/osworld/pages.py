"""What OSWorld's client did with the guest's browser through Playwright, seen where its getters only log failures."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from arpo_verl.environments.osworld.calls import Call, current_call

DRIVER, CONNECT, GOTO = "driver", "connect", "goto"

# Nobody listens at the browser's port, or what forwards it finds nobody: the browser was closed.
_CLOSED = ("ECONNREFUSED", "ECONNRESET", "EPIPE", "socket hang up", "other side closed")
# A page that turns out to be a download, or is left for another: no failure.
_NO_FAILURE = "net::ERR_ABORTED"
_LOCAL = re.compile(r"localhost|127\.[\d.]+|\[::1\]|0\.0\.0\.0")


@dataclass(frozen=True)
class PageCall:
    """One call of Playwright's that may fail: its driver's start, a connection to the browser, a page's load."""

    kind: str
    target: str = ""
    """The URL."""
    error: str = ""
    """Empty where it went well."""
    caller: Call = field(default_factory=current_call)
    """Who made it: a getter or a set-up step."""

    @property
    def browser_is_closed(self) -> bool:
        """Whether it failed since there is no browser."""
        return self.kind == CONNECT and any(sign in self.error for sign in _CLOSED)

    @property
    def host(self) -> str:
        """The page's on the internet; empty for one of the guest's own."""
        parts = urlsplit(self.target)
        is_remote = parts.scheme in ("http", "https") and not _LOCAL.fullmatch(parts.hostname or "localhost")
        return (parts.hostname or "") if is_remote else ""


class _PageLog(threading.local):
    def __init__(self) -> None:
        self.calls: list[PageCall] = []


_log = _PageLog()


def page_calls() -> list[PageCall]:
    """This thread's since `forget_page_calls`, in order."""
    return _log.calls


def forget_page_calls() -> None:
    """Start this thread's log anew."""
    _log.calls.clear()


def failed_calls() -> list[PageCall]:
    """What failed, and went well no later time when the same getter or step tried it again."""
    last = {(call.caller, call.kind, call.target): call for call in page_calls()}
    return [call for call in last.values() if call.error and _NO_FAILURE not in call.error]


def note_pages() -> None:
    """Once a process: note what Playwright's classes do from now on."""
    from playwright.sync_api import BrowserType, Page

    for owner, name, kind in ((BrowserType, "connect_over_cdp", CONNECT), (Page, "goto", GOTO)):
        setattr(owner, name, _noted(getattr(owner, name), kind))


class NotedPlaywright:
    """Stands in for `sync_playwright`: a driver that does not start is noted."""

    def __init__(self) -> None:
        from playwright.sync_api import sync_playwright

        self._manager: Any = sync_playwright()

    def __enter__(self) -> Any:
        try:
            started = self._manager.__enter__()
        except Exception as error:
            page_calls().append(PageCall(DRIVER, error=_words(error)))
            raise
        page_calls().append(PageCall(DRIVER))
        return started

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._manager.__exit__(kind, error, at)


def _noted(method: Callable[..., Any], kind: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, url: str, *args: Any, **options: Any) -> Any:
        try:
            result = method(self, url, *args, **options)
        except Exception as error:
            page_calls().append(PageCall(kind, url, _words(error)))
            raise
        page_calls().append(PageCall(kind, url))
        return result

    return call


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]
