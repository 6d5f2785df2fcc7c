"""Build validated, frozen dataclasses from a recipe's sections."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, get_args, get_type_hints

from arpo_verl.errors import ArpoError, ConfigError, SeveralErrors
from arpo_verl.lib.removed_options import removal

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = ParamSpec("P")
T = TypeVar("T")
ConfigT = TypeVar("ConfigT", bound="DataclassInstance")


def did_you_mean(name: object, known: Iterable[str], prefix: str = "") -> str:
    """Return the end of a message about an unknown name: the closest known one, or nothing if none is close.

    Args:
        prefix: text before the name, such as a section's name.
    """
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {prefix}{close[0]}?" if close else ""


class Problems:
    """Collects errors, so that all of them are reported at once."""

    def __init__(self) -> None:
        self.errors: list[ArpoError] = []

    @contextlib.contextmanager
    def gather(self) -> Iterator[None]:
        """Keep an error of the block instead of raising it."""
        try:
            yield
        except SeveralErrors as several:
            self.errors += several.errors
        except ArpoError as error:
            self.errors.append(error)

    def tell_defaults(self, is_default: Callable[[str], bool]) -> None:
        """Change messages about values that nobody set: they name the value as the default.

        Args:
            is_default: returns whether the option of this name has its default.
        """
        for number, error in enumerate(self.errors):
            name, found, rest = str(error).partition(" must be ")
            if found and type(error) is ConfigError and is_default(name):
                self.errors[number] = ConfigError(f"{name} must be {rest.replace(', got ', ', by default it is ', 1)}")

    def raise_all(self) -> None:
        """Raise what was kept, if anything.

        Raises:
            ArpoError: the only error, or `SeveralErrors`.
        """
        distinct = list({str(error): error for error in self.errors}.values())
        if len(distinct) > 1:
            raise SeveralErrors(*distinct)
        for error in distinct:
            raise error


class Checks(Problems):
    """Makes one check after the other. If one crashes on an unusual recipe, the others still report what they find."""

    def __init__(self) -> None:
        super().__init__()
        self._failure: Exception | None = None

    def run(self, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return what the check returns; None if it found a problem or crashed."""
        try:
            with self.gather():
                return check(*args, **kwargs)
        except Exception as error:
            self._failure = self._failure or error
        return None

    def raise_all(self) -> None:
        """Raise the problems that were found; if there are none, raise what crashed."""
        super().raise_all()
        if self._failure is not None:
            raise self._failure


def build_config(cls: type[ConfigT], section: str, values: Mapping[str, Any] | None) -> ConfigT:
    """Build the frozen config dataclass `cls` from a recipe's section.

    Args:
        cls: a dataclass whose `__post_init__` raises `ConfigError` for a bad value. Its `defaults_beside(values)`, if
            it has one, returns the defaults that depend on the given values.
        section: the section's name in the recipe, for messages.
        values: plain values (an OmegaConf section resolved with `OmegaConf.to_container`), or None for all defaults.

    Raises:
        ConfigError: the section does not have a name, or a value is wrong; lists all of them.
    """
    values = {} if values is None else dict(values)
    known, problems = [f.name for f in dataclasses.fields(cls)], Problems()
    for name in [name for name in values if name not in known]:
        del values[name]
        hint = did_you_mean(name, known, f"{section}.") or f". Known: {', '.join(known) or 'none'}"
        message = removal(f"{section}.{name}") or f"{section}.{name} is not an option{hint}"
        problems.errors.append(ConfigError(message))
    with problems.gather():
        built = cls(**{**getattr(cls, "defaults_beside", dict)(values), **values})
    problems.tell_defaults(lambda name: not _is_given(values, name.removeprefix(f"{section}.")))
    problems.raise_all()
    return built


def _is_given(values: Any, name: str) -> bool:
    """Return whether a mapping, also a nested one, has the name, whose parts are separated by dots."""
    first, _, rest = name.partition(".")
    given = isinstance(values, Mapping) and first in values
    return given and (not rest or _is_given(values[first], rest))


def require(condition: bool, name: str, expected: str, got: object, remedy: str = "") -> None:
    """Raise `ConfigError` unless `condition` holds. The message says what was expected, what came and what to do."""
    if not condition:
        raise ConfigError(f"{name} must be {expected}, got {got!r}" + (f"; {remedy}" if remedy else ""))


def load_named(option: str, path: str, expected: str, hint: str = "") -> Any:
    """Import what a recipe names as `package.module:NAME`. You must trust that code.

    Args:
        expected: what the option must name, for the message.
        hint: what else the message says.

    Raises:
        ConfigError: there is no such module or name.
    """
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{option} must name {expected}, got {path!r}, which cannot be imported: {error}"
            + (hint or "; install it for every Python that trains or plays")
        ) from error


class FieldRule(NamedTuple):
    """What values a field accepts, given in its annotation: `capacity: Annotated[int, whole(1)] = 8`.

    None is accepted if the annotation has `| None`.
    """

    expected: str
    holds: Callable[[Any], bool]
    remedy: str = ""
    known: Collection[str] = ()
    """The accepted names, if the field takes names."""

    def remedy_for(self, value: object) -> str:
        """Return what to do about a value that breaks the rule."""
        return self.remedy or did_you_mean(value, self.known).removeprefix("; ")


def whole(least: int, expected: str = "", remedy: str = "") -> FieldRule:
    """Require a whole number of at least `least`; true and false do not count."""
    return FieldRule(expected or f"a whole number of at least {least}", lambda n: type(n) is int and n >= least, remedy)


def number(holds: Callable[[float], bool], expected: str, remedy: str = "") -> FieldRule:
    """Require a finite number for which `holds` is true; true and false do not count."""

    def is_such(x: Any) -> bool:
        return isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) <= sys.float_info.max and holds(x)

    return FieldRule(expected, is_such, remedy)


def text(expected: str, remedy: str = "") -> FieldRule:
    """Require a string that is not empty."""
    return FieldRule(expected, lambda value: isinstance(value, str) and bool(value), remedy)


def truth() -> FieldRule:
    """Require true or false."""
    return FieldRule("true or false", lambda value: isinstance(value, bool))


def one_of(known: Collection[str], expected: str = "") -> FieldRule:
    """Require one of the `known` names."""
    return FieldRule(expected or f"one of {', '.join(known)}", lambda value: value in tuple(known), known=known)


def check_fields(config: Any, section: str = "") -> None:
    """Check the fields of a dataclass by the rules in their annotations; for its `__post_init__`.

    Args:
        section: the section's name in the recipe, for messages.

    Raises:
        ConfigError: names each field that breaks its rule.
    """
    problems = Problems()
    for name, rule, takes_none in _rules(config.__class__):
        value = getattr(config, name)
        ok = takes_none if value is None else rule.holds(value)
        with problems.gather():
            require(ok, f"{section}.{name}" if section else name, rule.expected, value, rule.remedy_for(value))
    problems.raise_all()


@cache
def _rules(cls: type) -> tuple[tuple[str, FieldRule, bool], ...]:
    """Return field, rule and whether it accepts None, for each field with a rule. Read once a class."""
    return tuple(
        (name, rule, type(None) in get_args(hint.__origin__))
        for name, hint in get_type_hints(cls, include_extras=True).items()
        for rule in getattr(hint, "__metadata__", ())
    )
