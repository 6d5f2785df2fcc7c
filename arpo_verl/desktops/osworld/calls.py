"""This module counts the OSWorld client's calls, to know which call sent a request to the guest.

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
from typing import Any, NamedTuple


class Call(NamedTuple):
    """This is one call of a function of the client's, the innermost at its time."""

    number: int
    """Counts the calls of a thread from 1; 0 outside of any call."""
    function: str


class _Thread(threading.local):
    def __init__(self) -> None:  # in each thread that looks
        self.numbers = itertools.count(1)
        self.call = Call(0, "")


_thread = _Thread()


def current_call() -> Call:
    """Return the call that this thread is in."""
    return _thread.call


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that each of its calls is a `Call`."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        outer, _thread.call = _thread.call, Call(next(_thread.numbers), function.__name__)
        try:
            return function(*args, **options)
        finally:
            _thread.call = outer

    return call


def count_calls(owner: Any, package: str) -> None:
    """Count the calls of each function of `package` that the module or class `owner` has."""
    for name, value in list(vars(owner).items()):
        if inspect.isfunction(value) and value.__module__.startswith(package) and not name.startswith("__"):
            setattr(owner, name, counted(value))
