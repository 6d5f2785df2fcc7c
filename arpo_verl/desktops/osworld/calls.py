"""What the OSWorld client does in this thread: `log` counts its calls, and keeps what other modules note of them.

The count shows which call sent a request to the guest.
A getter, a set-up step or a method of the controller repeats a lost request itself, in a loop. If that fails, it
returns nothing and nobody calls it again. So the same request from the same call is a retry. From another call it is
another question, and its answer does not replace the lost one.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from arpo_verl.desktops.osworld.guest_http import Exchange
    from arpo_verl.desktops.osworld.pages import PageCall
    from arpo_verl.desktops.osworld.swallowed import Swallowed


class Call(NamedTuple):
    """One call of a function of the client's, the innermost at its time."""

    number: int
    """Counts the calls of a thread from 1; 0 outside of any call."""
    function: str


class ClientLog(threading.local):
    """What this thread's client did since `clear`, each list in order."""

    def __init__(self) -> None:  # in each thread that looks
        self.numbers = itertools.count(1)
        self.call = Call(0, "")
        """The call that the thread is in."""
        self.evaluates = False
        """Whether it evaluates, after the policy has worked on the desktop."""
        self.clear()

    def clear(self) -> None:
        """Forget what was noted, but not the count of calls."""
        self.exchanges: list[Exchange] = []
        """Requests to the guest, by `guest_http`."""
        self.received = 0
        """Bytes of all answers together."""
        self.page_calls: list[PageCall] = []
        """Playwright's, by `pages`."""
        self.swallowed: list[Swallowed] = []
        """Problems of this host that the client caught, by `swallowed`."""
        self.missing: list[str] = []
        """Packages that it needed and did not find, by `lean_imports`: some metrics then score 0."""


log = ClientLog()


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that each of its calls is a `Call`."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        outer, log.call = log.call, Call(next(log.numbers), function.__name__)
        try:
            return function(*args, **options)
        finally:
            log.call = outer

    return call


def count_calls(owner: Any, package: str) -> None:
    """Count the calls of each function of `package` that the module or class `owner` has."""
    for name, value in list(vars(owner).items()):
        if inspect.isfunction(value) and value.__module__.startswith(package) and not name.startswith("__"):
            setattr(owner, name, counted(value))
