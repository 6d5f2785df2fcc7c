"""A scanner for calls in model text: `name(key='value', ...)`, one a line. Pure; linear time; nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator

from arpo_verl.errors import ActionParseError

_NAME = re.compile(r"[A-Za-z_]\w{0,39}", re.ASCII)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "'": "'", '"': '"', "\\": "\\"}
# A quote closes a string only where a call can go on: models forget to escape quotes inside `content`.
_AFTER_QUOTE = re.compile(r"[ \t\n]*(?:\)[ \t]*(?:\n|\Z)|,[ \t\n]*[A-Za-z_]\w{0,39}[ \t]*=)", re.ASCII)


def read_calls(text: str, position: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (name, arguments) of every call from `position` to the end of the text.

    A newline must stand between calls; each may have its own `Action:` label.

    Raises:
        ActionParseError: the text is no such call, or there is none.
    """
    position = _skip_space(text, position)
    if position == len(text):
        raise ActionParseError("a reply must have an action after 'Action:', got nothing")
    while position < len(text):
        name, arguments, position = _read_call(text, position)
        yield name, arguments
        after = _skip_space(text, position)
        if after < len(text) and "\n" not in text[position:after]:
            raise ActionParseError(f"a new line must follow an action, got {excerpt(text[after:])}")
        if text.startswith("Action:", after):
            after = _skip_space(text, after + len("Action:"))
        position = after


def _read_call(text: str, position: int) -> tuple[str, dict[str, str], int]:
    """Read `name(key='value', ...)`; returns the position behind it."""
    name, position = _read_name(text, position, "an action's name")
    position = _expect(text, position, "(")
    arguments: dict[str, str] = {}
    position = _skip_space(text, position)
    while not text.startswith(")", position):
        key, position = _read_name(text, position, f"an argument's name in {name}")
        position = _expect(text, position, "=")
        value, position = _read_string(text, _skip_space(text, position))
        if key in arguments:
            raise ActionParseError(f"{name} must have {key} once, got it twice")
        arguments[key] = value
        position = _skip_space(text, position)
        if text.startswith(",", position):
            position = _skip_space(text, position + 1)
        elif not text.startswith(")", position):
            raise ActionParseError(f"',' or ')' must follow {key} in {name}, got {excerpt(text[position:])}")
    return name, arguments, position + 1


def _read_name(text: str, position: int, what: str) -> tuple[str, int]:
    match = _NAME.match(text, position)
    if match is None:
        raise ActionParseError(f"expected {what}, got {excerpt(text[position:])}")
    return match.group(), match.end()


def _read_string(text: str, position: int) -> tuple[str, int]:
    r"""Read a quoted string with the escapes \n \t \r \' \" \\; any other backslash is itself (`C:\dir`)."""
    quote = text[position : position + 1]
    if quote not in ("'", '"'):
        raise ActionParseError(f"a value must be quoted, got {excerpt(text[position:])}")
    position += 1
    pieces: list[str] = []
    stop = re.compile(rf"[\\{quote}]")
    while (match := stop.search(text, position)) is not None:
        pieces.append(text[position : match.start()])
        position = match.end()
        if match.group() == "\\":
            character = text[position : position + 1]
            pieces.append(_ESCAPES.get(character, "\\" + character))
            position += 1
        elif _AFTER_QUOTE.match(text, position):
            return "".join(pieces), position
        else:
            pieces.append(quote)
    raise ActionParseError(f"a string must end with {quote} and its call with ')', got {excerpt(text[-60:])}")


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\n":
        position += 1
    return position


def _expect(text: str, position: int, sign: str) -> int:
    position = _skip_space(text, position)
    if not text.startswith(sign, position):
        raise ActionParseError(f"expected {sign!r}, got {excerpt(text[position:])}")
    return position + 1


def excerpt(text: str) -> str:
    """A short quotation of what came, for messages."""
    return repr(text if len(text) <= 60 else text[:60] + "...") if text else "the end"
