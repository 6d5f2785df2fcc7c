"""How a config's fields say what they take, and what is said of a value that they do not take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import pytest

from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import build_config, check_fields, number, one_of, text, truth, whole
from arpo_verl.lib.removed_options import REMOVED


@dataclass(frozen=True)
class Section:
    count: Annotated[int, whole(1)] = 1
    size: Annotated[int | None, whole(0, "a size or null", "leave it out")] = None
    share: Annotated[float, number(lambda x: 0 < x <= 1, "in (0, 1]")] = 1.0
    delay_s: Annotated[float, number(lambda x: x >= 0, "0 or more seconds")] = 0
    name: Annotated[str, text("a name")] = "a"
    kind: Annotated[str, one_of(("one", "two"))] = "one"
    on: Annotated[bool, truth()] = False
    anything: object = None

    def __post_init__(self) -> None:
        check_fields(self, "section")


@pytest.mark.parametrize(
    ("name", "refused", "taken"),
    [
        ("count", (0, True, 1.0, "1", math.nan, None, [1]), (1, 10**12)),
        ("size", (-1, False, "1"), (0, None)),
        ("share", (0, 1.5, True, "1", math.nan, math.inf, -math.inf, None), (1, 0.5)),
        ("delay_s", (-0.1, False, math.inf, math.nan), (0, 2.5)),
        ("name", ("", 1, None, ["a"]), ("a",)),
        ("kind", ("three", "", 1, None, ["one"]), ("one", "two")),
        ("on", (0, 1, "true", None), (True, False)),
        ("anything", (), (None, 1, "x")),
    ],
)
def test_a_field_takes_what_its_annotation_says_and_nothing_else(name, refused, taken):
    for value in taken:
        assert getattr(build_config(Section, "section", {name: value}), name) is value
    for value in refused:
        with pytest.raises(ConfigError, match=rf"^section\.{name} must be "):
            build_config(Section, "section", {name: value})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": 0}, "section.count must be a whole number of at least 1, got 0"),
        ({"size": -1}, "section.size must be a size or null, got -1; leave it out"),
        ({"share": math.nan}, "section.share must be in (0, 1], got nan"),
        ({"kind": "tow"}, "section.kind must be one of one, two, got 'tow'; did you mean two?"),
        ({"on": "yes"}, "section.on must be true or false, got 'yes'"),
    ],
)
def test_a_refusal_says_what_was_expected_what_came_and_what_to_do(values, message):
    with pytest.raises(ConfigError) as caught:
        Section(**values)
    assert str(caught.value) == message


def test_a_call_without_a_section_is_told_the_fields_name_alone():
    @dataclass(frozen=True)
    class Call:
        size: Annotated[int, whole(1)]
        __post_init__ = check_fields

    with pytest.raises(ConfigError, match="^size must be a whole number of at least 1, got 0"):
        Call(0)


def test_an_unknown_name_is_told_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"section.cuont is not an option; did you mean section.count\?"):
        build_config(Section, "section", {"cuont": 1})


def test_a_removed_option_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setitem(REMOVED, "section.gone", "section.count does the same")
    with pytest.raises(ConfigError, match="^section.gone was removed: section.count does the same; leave it out$"):
        build_config(Section, "section", {"gone": 1})
