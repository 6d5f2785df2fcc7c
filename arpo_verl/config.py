"""From a recipe's section to a validated, frozen dataclass."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_type_hints

from arpo_verl.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ConfigT = TypeVar("ConfigT", bound="DataclassInstance")


def build_config(cls: type[ConfigT], section: str, values: Mapping[str, Any] | None) -> ConfigT:
    """Build the frozen config dataclass `cls` from a recipe's section.

    Args:
        cls: a dataclass whose `__post_init__` raises `ConfigError` for a bad value.
        section: the section's name in the recipe, for messages.
        values: plain values (an OmegaConf section resolved with `OmegaConf.to_container`), or None for all defaults.

    Raises:
        ConfigError: for a name that the section does not have, or a value that it does not take.
    """
    values = {} if values is None else dict(values)
    known = [f.name for f in dataclasses.fields(cls)]
    for name in values:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {section}.{close[0]}?" if close else ""
            raise ConfigError(f"{section}.{name} is not an option{hint} Known: {', '.join(known)}")
    return cls(**values)


def require(condition: bool, name: str, expected: str, got: object, remedy: str = "") -> None:
    """Raise `ConfigError` in the house's form unless `condition` holds: what was expected, what came, what to do."""
    if not condition:
        raise ConfigError(f"{name} must be {expected}, got {got!r}" + (f"; {remedy}" if remedy else ""))


class Rule(NamedTuple):
    """What a field takes, said in its annotation: `capacity: Annotated[int, whole(1)] = 8`.

    None is taken where the annotation has `| None`.
    """

    expected: str
    holds: Callable[[Any], bool]
    remedy: str = ""


def whole(least: int, expected: str = "", remedy: str = "") -> Rule:
    """A whole number from `least`; true and false are none."""
    return Rule(expected or f"a whole number of at least {least}", lambda n: type(n) is int and n >= least, remedy)


def number(holds: Callable[[float], bool], expected: str, remedy: str = "") -> Rule:
    """A finite number that `holds`; true and false are none."""

    def is_such(x: Any) -> bool:
        return isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) <= sys.float_info.max and holds(x)

    return Rule(expected, is_such, remedy)


def text(expected: str, remedy: str = "") -> Rule:
    """A string that is not empty."""
    return Rule(expected, lambda value: isinstance(value, str) and bool(value), remedy)


def truth() -> Rule:
    """True or false."""
    return Rule("true or false", lambda value: isinstance(value, bool))


def one_of(known: Collection[str], expected: str = "") -> Rule:
    """One of the `known` names."""
    return Rule(expected or f"one of {', '.join(known)}", lambda value: value in tuple(known))


def check_fields(config: Any, section: str = "") -> None:
    """Hold the fields of a dataclass to the rules in their annotations; for its `__post_init__`.

    Args:
        section: the section's name in the recipe, for messages.

    Raises:
        ConfigError: names the first field that breaks its rule.
    """
    for name, rule, takes_none in _rules(config.__class__):
        value = getattr(config, name)
        ok = takes_none if value is None else rule.holds(value)
        require(ok, f"{section}.{name}" if section else name, rule.expected, value, rule.remedy)


@cache
def _rules(cls: type) -> tuple[tuple[str, Rule, bool], ...]:
    """Field, rule and whether it takes None, of each field with a rule. Read once a class."""
    return tuple(
        (name, rule, type(None) in get_args(hint.__origin__))
        for name, hint in get_type_hints(cls, include_extras=True).items()
        for rule in getattr(hint, "__metadata__", ())
    )
