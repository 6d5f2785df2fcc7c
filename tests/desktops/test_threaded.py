"""A desktop in a thread of its own."""

import gc
import sys
import threading
from types import ModuleType

import pytest
from support.desktop_harness import eventually

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.threaded import ThreadedDesktop


class Failing:
    def close(self):
        raise OSError("it does not close")


def fail(config, name):
    raise OSError("it is not made")


class Counted:
    closed = 0

    def prepare(self):
        pass

    def close(self):
        Counted.closed += 1


def test_a_desktop_that_was_used_and_forgotten_is_closed(monkeypatch):
    """Its thread kept the last call, and so the desktop, until the interpreter ended."""
    module = ModuleType("counted_desktops")
    module.make = lambda config, name: Counted()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    ThreadedDesktop(EnvironmentConfig(provider="counted_desktops:make")).prepare()
    gc.collect()
    eventually(lambda: Counted.closed == 1)


@pytest.mark.parametrize("make", [fail, lambda config, name: Failing()])
def test_its_thread_ends_where_a_desktop_is_not_made_or_does_not_close(monkeypatch, make):
    module = ModuleType("failing_desktops")
    module.make = make
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(OSError, match="it is not made|it does not close"):
        ThreadedDesktop(EnvironmentConfig(provider="failing_desktops:make"), "failing").close()
    eventually(lambda: "failing" not in [thread.name for thread in threading.enumerate()])
