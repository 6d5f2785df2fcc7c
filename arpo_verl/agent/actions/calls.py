"""Scan calls in model text: `name(key='value', ...)`, one a line. Pure; linear time; evaluates nothing."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Iterator, Mapping

from arpo_verl.errors import ActionParseError

MAX_ARGUMENTS = 16
"""Most arguments of a call: four times as many as any action has."""

# Anything before the last dot is ignored: `pyautogui.click(...)`. OSWorld's runner takes any Unicode space.
_BEGINS = re.compile(r"(?:[A-Za-z_]\w{0,39}\.){0,3}([A-Za-z_]\w{0,39})\s*\(")
_KEY = re.compile(r"([A-Za-z_]\w{0,39})\s*=")
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "'": "'", '"': '"', "\\": "\\"}

# Where a string may end. Models forget to escape quotes within `content`, so only a quote before one of these counts.
_STOPS = {quote: re.compile(rf"[\\\n]|{quote}(?=\s*[,)])") for quote in "'\""}
_BRACKET = re.compile(r"\s*(?:,\s*)?\)")
_CALL_ENDS = re.compile(_BRACKET.pattern + r"[^\S\n]*(?:\n|\Z)")
_REMARK = re.compile(r"[^\S\n]*#[^\n]*")
_COMMENT = re.compile(_BRACKET.pattern + r"[^\S\n]*#")
_ANY_KEY = re.compile(r"\s*,\s*[A-Za-z_]\w{0,39}\s*=")
_ANY_TEXT = re.compile(_ANY_KEY.pattern + r"\s*['\"]")


class CallScanner:
    """Reads the calls of one grammar.

    Args:
        arguments: the names of each action's arguments, by its name.
        free_text: the argument that may contain anything, also quotes and `, name=`.
        typed: the action whose strings must end on their line: if one goes on, a quote was forgotten, and the desktop
            would get the reply's own syntax.
    """

    def __init__(self, arguments: Mapping[str, Collection[str]], free_text: str, typed: str):
        self._free_text = free_text
        self._typed = typed
        actions = "|".join(arguments)
        keys = "|".join(sorted({key for keys in arguments.values() for key in keys}))
        # A value must follow: `sorted('ab', key=len)` is text.
        self._known_key = re.compile(rf"\s*,\s*(?:{keys})\s*=\s*['\"]")
        # The start of another call, as nobody types it, unless its quote is escaped. It begins a line, or follows a few
        # words or signs, or `\n` as models write it, but no dot, which makes it a program's own call.
        begin = rf"(?:\)[^()'\"]{{0,24}}?|\n[^\S\n]{{0,24}})(?:(?<![\w.])|\\[nrt]|\bpyautogui\.)(?:{actions})\("
        self._calls_within = {
            quote: re.compile(rf"{begin}[ \t]*(?:{keys})[ \t]*=[ \t]*{quote}", re.ASCII) for quote in "'\""
        }
        self._call_follows = re.compile(rf"[ \t]*\)[ \t;,]*(?:{actions})\([ \t]*(?:\)|(?:{keys})[ \t]*=)")

    def read(self, text: str, position: int) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield (name, arguments) of every call from `position` to the end of the text.

        Calls are separated by a newline, and a comment may precede it. An unnamed argument is named by its number.

        Raises:
            ActionParseError: the text is not such a call, or there is none.
        """
        position = _skip_space(text, position)
        if position == len(text):
            raise ActionParseError("a reply must have an action after 'Action:', got nothing")
        while position < len(text):
            name, arguments, position = self._read_call(text, position)
            yield name, arguments
            position = _skip_comment(text, position)
            after = _skip_space(text, position)
            if after < len(text) and "\n" not in text[position:after]:
                raise ActionParseError(f"a new line must follow an action, got {excerpt(text[after:])}")
            position = after

    def _read_call(self, text: str, position: int) -> tuple[str, dict[str, str], int]:
        """Read `name(key='value', ...)`. Return the position after it, too."""
        match = _BEGINS.match(text, position)
        if match is None:
            raise ActionParseError(f"an action must be a call, such as wait(), got {excerpt(text[position:])}")
        name, position = match[1], _skip_space(text, match.end())
        arguments: dict[str, str] = {}
        while not text.startswith(")", position):
            match = _KEY.match(text, position)
            key, position = (match[1], match.end()) if match else (str(len(arguments)), position)
            value, position = self._read_value(text, _skip_space(text, position), key, name)
            if len(arguments) == MAX_ARGUMENTS:
                raise ActionParseError(f"an action must have at most {MAX_ARGUMENTS} arguments, got more")
            arguments[key] = value  # if a name comes twice, the last counts, as in OSWorld's runner
            position = _skip_space(text, position)
            if text.startswith(",", position):
                position = _skip_space(text, position + 1)
            elif not text.startswith(")", position):
                raise ActionParseError(f"',' or ')' must follow {key} in {name}, got {excerpt(text[position:])}")
        return name, arguments, position + 1

    def _read_value(self, text: str, position: int, key: str, name: str) -> tuple[str, int]:
        if text[position : position + 1] in ("'", '"'):
            return self._read_string(text, position, key, name)
        match = _NUMBER.match(text, position)
        if match is None:
            raise ActionParseError(f"a value must be quoted, got {excerpt(text[position:])}")
        return match.group(), match.end()

    def _read_string(self, text: str, position: int, key: str, name: str) -> tuple[str, int]:
        r"""Read a quoted string with the escapes \n \t \r \' \" \\; any other backslash is itself (`C:\dir`)."""
        quote = text[position]
        start = position = position + 1
        pieces: list[str] = []
        ends_line: bool | None = None
        last: re.Match[str] | None = None  # of a quote and a bracket, behind which there is text
        quotes, counted = 0, start  # unescaped quotes within the text
        while (match := _STOPS[quote].search(text, position)) is not None:
            pieces.append(text[position : match.start()])
            position = match.end()
            if match.group() == "\n" and name != self._typed:
                pieces.append("\n")
                ends_line = None
                continue
            elif match.group() == "\n":
                raise ActionParseError(rf"a string must end on its line (\n is a new one), got {_before(text, match)}")
            elif match.group() == "\\":
                escaped = _ESCAPES.get(text[position : position + 1])
                pieces.append("\\" if escaped is None else escaped)
                position += escaped is not None
                quotes -= escaped == quote
                continue
            quotes, counted = quotes + text.count(quote, counted, match.start()), match.start()
            if self._closes(text, position, key, within_quotes=quotes % 2 == 1):
                break
            last = _BRACKET.match(text, position) or last
            if _COMMENT.match(text, position):
                # In typed text this is a comment sign, if a later quote closes the line.
                ends_line = _closes_line(text, position, quote) if ends_line is None else ends_line
                if not ends_line:
                    break
                pieces.append(quote)
            else:
                pieces.append(quote)
        else:
            if last is not None:
                raise ActionParseError(f"a new line must follow an action, got {excerpt(text[last.end() :])}")
            raise ActionParseError(f"a string must end with {quote} and its call with ')', got {excerpt(text[-60:])}")
        within = self._calls_within[quote].search(text, start, position)
        if within is not None:
            raise ActionParseError(f"a string must not run over the next call, got {excerpt(within.group())}")
        return "".join(pieces), position

    def _closes(self, text: str, position: int, key: str, within_quotes: bool) -> bool:
        """Return whether a quote ends the value. Free text ends before a name of the grammar, or before another name if
        no quote within it is open: `f('a', b='c')` is text."""
        if key != self._free_text:
            next_key = _ANY_KEY
        else:
            next_key = self._known_key if within_quotes else _ANY_TEXT
        closing = _CALL_ENDS.match(text, position) or next_key.match(text, position)
        return (closing or self._call_follows.match(text, position)) is not None


def _closes_line(text: str, position: int, quote: str) -> bool:
    """Return whether the line from `position` on ends with a quote and a `)`."""
    end = text.find("\n", position)
    line = text[position : end if end >= 0 else len(text)].rstrip(" \t")
    return line.endswith(")") and line[:-1].rstrip(" \t,").endswith(quote)


def _before(text: str, match: re.Match[str]) -> str:
    return excerpt(text[max(match.start() - 40, 0) : match.start()])


def _skip_comment(text: str, position: int) -> int:
    """Return the position after a comment, if there is one: the end of its line."""
    found = _REMARK.match(text, position)
    return position if found is None else found.end()


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def shown(value: object) -> str:
    """Quote an argument for messages. It stays short and flat: a model may have nested it a thousand deep."""
    return f"the text {excerpt(value)}" if isinstance(value, str) else reprlib.repr(value)[:120]


def excerpt(text: str) -> str:
    """Quote a short part of the text, for messages."""
    shown = repr(text if len(text) <= 60 else text[:60] + "...") if text else "the end"
    return shown if len(shown) <= 120 else shown[:120] + "..."  # some signs are written as `\\U0001d4b3`
