"""Note what OSWorld's client did with the guest's browser, whose errors its getters only log."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from arpo_verl.desktops.osworld.calls import Call, log

DRIVER, CONNECT, GOTO = "driver", "connect", "goto"

# Nothing listens at the browser's port, or the program that forwards it finds no browser: it was closed.
_CLOSED = ("ECONNREFUSED", "ECONNRESET", "EPIPE", "socket hang up", "other side closed")
# This is no failure: the page is a download, or was left for another page.
_NO_FAILURE = "net::ERR_ABORTED"
_LOCAL = re.compile(r"localhost|127\.[\d.]+|\[::1\]|0\.0\.0\.0")


@dataclass(frozen=True)
class PageCall:
    """One call of Playwright's that may fail: to start its driver, connect to the browser, or load a page."""

    kind: str
    target: str = ""
    """The URL."""
    error: str = ""
    """Empty if it succeeded."""
    caller: Call = field(default_factory=lambda: log.call)
    """The getter or set-up step that made it."""

    @property
    def browser_is_closed(self) -> bool:
        """Return whether it failed because there is no browser."""
        return self.kind == CONNECT and any(sign in self.error for sign in _CLOSED)

    @property
    def host(self) -> str:
        """The page's host on the internet; empty for one of the guest's own pages."""
        parts = urlsplit(self.target)
        is_remote = parts.scheme in ("http", "https") and not _LOCAL.fullmatch(parts.hostname or "localhost")
        return (parts.hostname or "") if is_remote else ""


def failed_calls() -> list[PageCall]:
    """Return calls that failed and never succeeded when the same getter or step tried again."""
    last = {(call.caller, call.kind, call.target): call for call in log.page_calls}
    return [call for call in last.values() if call.error and _NO_FAILURE not in call.error]


def note_pages() -> None:
    """Note what Playwright's classes do from now on; call it once in a process."""
    from playwright.sync_api import BrowserType, Page

    for owner, name, kind in ((BrowserType, "connect_over_cdp", CONNECT), (Page, "goto", GOTO)):
        setattr(owner, name, _noted(getattr(owner, name), kind))


@contextlib.contextmanager
def noted_playwright() -> Iterator[Any]:
    """Stands for `sync_playwright`, and notes a driver that does not start."""
    from playwright.sync_api import sync_playwright

    with contextlib.ExitStack() as stack:
        yield _noted(stack.enter_context, DRIVER)(sync_playwright())


def _noted(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        target = next((one for one in (*args, options.get("url")) if isinstance(one, str)), "")
        try:
            result = function(*args, **options)
        except Exception as error:
            log.page_calls.append(PageCall(kind, target, f"{type(error).__name__}: {error}"[:500]))
            raise
        log.page_calls.append(PageCall(kind, target))
        return result

    return call
