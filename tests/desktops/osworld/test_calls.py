"""Whoever asks the guest in OSWorld's client is known as a caller."""

import ast
import importlib
from pathlib import Path

import pytest

desktop_env = pytest.importorskip("desktop_env")

from arpo_verl.desktops.osworld.calls import counted, log  # noqa: E402
from arpo_verl.desktops.osworld.client import TaskSetup  # noqa: E402

PACKAGE = Path(desktop_env.__file__).parent
SENDS = {"connect_over_cdp", "goto"}
PINGS = {("controllers.setup", "SetupController", "setup")}
"""It asks whether the guest is there before the first step, and looks at no answer."""


def senders():
    """Module, class and function of everything in the client that asks a guest, itself and not by another function."""
    for file in sorted([*PACKAGE.glob("evaluators/**/*.py"), *PACKAGE.glob("controllers/*.py")]):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        for owner in [tree, *classes]:
            for node in owner.body:
                if not isinstance(node, ast.ClassDef) and any(map(asks, ast.walk(node))):
                    yield module, getattr(owner, "name", ""), getattr(node, "name", f"line {node.lineno}")


def asks(node):
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    of_requests = isinstance(node.func.value, ast.Name) and node.func.value.id == "requests"
    return (of_requests and node.func.attr in ("get", "post", "request")) or node.func.attr in SENDS


def test_every_function_of_the_client_that_asks_a_guest_is_counted():
    found = set(senders())
    assert len(found) > 30 and found >= PINGS
    for module, owner, name in sorted(found - PINGS):
        loaded = importlib.import_module(f"desktop_env.{module}")
        home = {"": loaded, "SetupController": TaskSetup}.get(owner) or getattr(loaded, owner)
        if "ProxyPool" not in owner:  # it asks the proxies, not the guest
            assert hasattr(getattr(home, name, None), "__wrapped__"), f"{module}: {owner} {name}"


def test_the_innermost_call_is_the_caller_and_each_call_another():
    @counted
    def inner():
        return log.call

    @counted
    def outer():
        return log.call, inner(), inner(), log.call

    begin, first, second, end = outer()
    assert begin == end and [call.function for call in (begin, first, second)] == ["outer", "inner", "inner"]
    assert len({begin, first, second}) == 3
    assert log.call not in (begin, first, second)


def test_a_call_that_raises_is_over():
    @counted
    def fail():
        raise ValueError

    before = log.call
    with pytest.raises(ValueError):
        fail()
    assert log.call == before
