"""A desktop in a thread of its own."""

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


@pytest.mark.parametrize("make", [fail, lambda config, name: Failing()])
def test_its_thread_ends_where_a_desktop_is_not_made_or_does_not_close(monkeypatch, make):
    module = ModuleType("failing_desktops")
    module.make = make
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(OSError, match="it is not made|it does not close"):
        ThreadedDesktop(EnvironmentConfig(provider="failing_desktops:make"), "failing").close()
    eventually(lambda: "failing" not in [thread.name for thread in threading.enumerate()])
