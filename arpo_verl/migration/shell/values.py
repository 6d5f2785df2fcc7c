"""This module expands the words of a script, as far as the script alone decides them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from arpo_verl.errors import ConfigError
from arpo_verl.migration.shell.arithmetic import compute
from arpo_verl.migration.shell.words import Part, Token, split_quoted

MAX_VALUE = 16 * 1024
MAX_WORDS = 2000
MAX_WORK, PER_WORD, PER_COMMAND = 10_000_000, 50, 500
"""Characters that are handled before a script is given up, since a short script can ask for any number; and the
characters that a word and a command count as."""

_BRACES = re.compile(r"\$\{(!?)([A-Za-z_]\w*|\d+|[@*])(?:\[([^\]]*)\])?(?:(:?[-=+?])(.*))?\}", re.S)
_JOINED = re.compile(r"\$\*|\$\{(?:\*|[A-Za-z_]\w*\[\*\])")
"""The beginning of an expansion that is one word between quotes, unlike `[@]` and `$@`."""
_REST = re.compile(r"\$\{[@*]:.*\}|\$[@*]", re.S)


@dataclass(frozen=True)
class Field:
    """A field is an expanded word. If only running the script could expand it, it has the source and `because`."""

    text: str
    because: str | None = None


Value: TypeAlias = Field | tuple[Field, ...]
"""A variable's value: a field, or an array of them."""


@dataclass
class Values:
    """These are the script's variables, as far as it has been followed.

    Attributes:
        variables: name -> value.
        arguments: arguments of the current function; None outside functions, since the script's are unknown.
        work: characters that may still be handled.
    """

    variables: dict[str, Value] = field(default_factory=dict)
    arguments: tuple[Field, ...] | None = None
    work: int = MAX_WORK

    def spend(self, work: int) -> None:
        """Count work.

        Raises:
            ConfigError: it exceeds the limit.
        """
        self.work -= work
        if self.work < 0:
            raise ConfigError("the script's loops and variables are too large to follow; convert a shorter script")

    def assign(self, name: str, value: Value, adds: bool = False) -> None:
        """Set a variable, or add to it."""
        old = self.variables.get(name)
        if adds and isinstance(value, tuple):
            value = (*(old if isinstance(old, tuple) else (old,) if old is not None else ()), *value)
        elif adds:
            missing = Field(f"${name}", f"the script does not assign {name}")
            value = _join([_first(old) if old is not None else missing, _first(value)])
        if isinstance(value, tuple) and len(value) > MAX_WORDS:
            raise ConfigError(f"the script's array {name} must have at most {MAX_WORDS} words, got more")
        self.variables[name] = value

    def whole(self, parts: tuple[Part, ...]) -> Field:
        """Expand the parts to one field, as in an assignment, where a shell splits nothing."""
        fields = [_join(list(self._expand(part)), " ") if part.expands else Field(part.text) for part in parts]
        self.spend(sum(len(found.text) for found in fields))
        return _join(fields)

    def fields(self, word: Token) -> list[Field]:
        """Return the words that a command gets for `word`: none, one or more."""
        made: list[list[Field]] = [[]]
        for part in word.parts:
            if not part.expands:
                made[-1].append(Field(part.text))
                continue
            values = list(self._expand(part))
            if part.quoted and _JOINED.match(part.text):
                values = [_join(values, " ")]
            elif not part.quoted:
                values = [piece for value in values for piece in _split(value)]
            if values:
                made[-1].append(values[0])
                made += [[value] for value in values[1:]]
            self.spend(sum(len(value.text) + PER_WORD for value in values))
        return [_join(pieces) for pieces in made if pieces]

    def _expand(self, part: Part) -> tuple[Field, ...]:
        """Return the fields of an expansion; several only for an array's `[@]`."""
        source = part.text
        if _REST.fullmatch(source):
            return self.arguments or ()
        if source.startswith("$(("):
            value = compute(source[3:-2], self._number)
            return (Field(source, f"`{shorten(source)}` is not computed") if value is None else Field(str(value)),)
        braces = _BRACES.fullmatch(source)
        if braces is not None:
            return self._expand_braces(source, braces)
        if re.fullmatch(r"\$\w+", source):
            return (self._look_up(source[1:], source),)
        command = source.startswith(("$(", "`", "<(", ">("))
        return (Field(source, f"`{shorten(source)}` is not {'run' if command else 'computed'}"),)

    def _expand_braces(self, source: str, braces: re.Match[str]) -> tuple[Field, ...]:
        indirect, name, index, operator, word = braces.groups()
        if indirect:
            pointer = self._look_up(name, source)
            if pointer.because is not None or index is not None:
                return (Field(source, f"`{shorten(source)}` is not followed"),)
            name = pointer.text
        value = self._look_up(name, source)
        array = self.variables.get(name)
        if index is not None and isinstance(array, tuple):
            if index in ("@", "*"):
                return array
            number = compute(index, self._number)
            value = array[number] if number is not None and 0 <= number < len(array) else Field(source, "it is unset")
        if operator is None:
            return (value,)
        return self._with_default(name, value, operator, word)

    def _with_default(self, name: str, value: Field, operator: str, word: str) -> tuple[Field, ...]:
        """Expand `${NAME:-word}` and the like. A variable that the script does not assign counts as unset."""
        is_set = name in self.variables or (name.isdecimal() and value.because is None)
        is_there = is_set and (value.because is not None or bool(value.text) or operator[0] != ":")
        if operator.endswith("+"):
            return (self.whole(split_quoted(_bare(word))),) if is_there else ()
        if is_there or operator.endswith("?"):
            return (value,)
        default = self.whole(split_quoted(_bare(word)))
        if operator.endswith("="):
            self.variables[name] = default
        return (default,)

    def _look_up(self, name: str, source: str) -> Field:
        if name.isdecimal():
            arguments = self.arguments or ()
            if 0 < int(name[:5]) <= len(arguments):
                return arguments[int(name[:5]) - 1]
            return Field(
                source, f"it is argument {name[:5]} of the {'script' if self.arguments is None else 'function'}"
            )
        if name not in self.variables:
            return Field(source, f"the script does not assign {name}")
        value = _first(self.variables[name])
        return value if value.because is None else Field(source, value.because)

    def _number(self, name: str) -> str | None:
        value = self._look_up(name, name)
        return value.text if value.because is None else None


def merge(outcomes: list[dict[str, Value]], defaults: set[str]) -> dict[str, Value]:
    """Return the variables after a choice that only running the script could make.

    Args:
        outcomes: the variables after each arm of the choice.
        defaults: names that an arm assigns only if they are unset.
    """
    merged: dict[str, Value] = {}
    for name in {name: None for outcome in outcomes for name in outcome}:
        values = list(dict.fromkeys(outcome.get(name) for outcome in outcomes))
        known = [value for value in values if value is not None]
        if len(values) == 1 or (len(known) == 1 and name in defaults):
            merged[name] = known[0]
        else:
            shown = " or ".join("unset" if value is None else repr(shorten(_first(value).text)) for value in values[:4])
            merged[name] = Field(f"${name}", f"a condition of the script decides {name}: {shown}")
    return merged


def _join(fields: list[Field], between: str = "") -> Field:
    text = between.join(found.text for found in fields)
    if len(text) > MAX_VALUE:
        raise ConfigError(f"a word of the script must have at most {MAX_VALUE} characters, got more")
    return Field(text, next((found.because for found in fields if found.because is not None), None))


def _split(value: Field) -> list[Field]:
    """Split a value at spaces, as a shell does outside quotes."""
    if value.because is not None:
        return [value]
    return [Field(text) for text in value.text.split()]


def _first(value: Value) -> Field:
    return (value[0] if value else Field("")) if isinstance(value, tuple) else value


def _bare(word: str) -> str:
    """Return a default without the quotes around it."""
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word


def shorten(value: object) -> str:
    """Return its text on one line, of at most 60 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
