"""This module splits a script's text into words and operators."""

from __future__ import annotations

import re
from dataclasses import dataclass

from arpo_verl.errors import ConfigError

MAX_DEPTH = 40
"""Deepest nesting of quotes and expansions."""

_SPACE = re.compile(r"(?:[ \t\r]|\\\r?\n|#[^\n]*)+")
_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;|&()]")
_REDIRECTION = re.compile(r"\d*(?:<<<|<<-?|<>|<&|<|>>|>&|>\||>)|&>>?")
_PLAIN = re.compile(r"[^ \t\r\n'\"\\$`;|&()<>]+|\$")
_BLANK = re.compile(r"<[A-Za-z][^<>\n;|&()$`'\"\\]{0,80}>(?=[\s/]|$)")
"""A placeholder as in `KEY=<your path>`. A shell would read from such a file, and write into the next option."""
_SIMPLE = re.compile(r"\$(?:[A-Za-z_]\w*|[\d@*#?!$-])")
# For each closing character, the characters that matter on the way to it.
_STOPS = {
    '"': re.compile(r"[\\$`\"]"),
    "`": re.compile(r"[\\`]"),
    ")": re.compile(r"(?<=\s)#[^\n]*|[\\$`\"'()]"),
    "}": re.compile(r"[\\$`\"}]"),
}


@dataclass(frozen=True)
class Part:
    """A part is a piece of a word.

    Attributes:
        text: its text, or an expansion's source, such as `${NAME:-x}`.
        quoted: whether a shell does not split it.
        expands: whether it is an expansion.
    """

    text: str
    quoted: bool = False
    expands: bool = False


@dataclass
class Token:
    """A token is a word, an operator, a redirection, or `((arithmetic))`.

    Attributes:
        kind: `word`, `operator`, `redirection` or `arithmetic`.
        text: its source.
        line: line number, from 1.
        parts: parts of a word; empty for other kinds.
        glued: whether it follows a word without a space, as the bracket of `NAME=(`.
        document: lines of the here-document of `<<`.
    """

    kind: str
    text: str
    line: int
    parts: tuple[Part, ...] = ()
    glued: bool = False
    document: str | None = None


def split_words(text: str) -> list[Token]:
    """Split a script.

    Raises:
        ConfigError: a quote or a bracket has no end, or they are nested too deeply.
    """
    return _Splitter(text).split()


def split_quoted(text: str) -> tuple[Part, ...]:
    """Split the text between double quotes into parts."""
    parts: list[Part] = []
    place = 0
    while place < len(text):
        found = re.compile(r"[\\$`]").search(text, place)
        until = found.start() if found else len(text)
        if until > place:
            parts.append(Part(text[place:until], quoted=True))
        if found is None:
            break
        end = min(end_of(text, until), len(text))
        parts += _special(text[until:end], quoted=True)
        place = end
    return tuple(parts) or (Part("", quoted=True),)


def end_of(text: str, place: int, depth: int = 0) -> int:
    """Return where the quote, expansion, bracket or escape ends that begins at `place`."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"line {_line(text, place)} of the script has more than {MAX_DEPTH} nested brackets")
    first, second = text[place], text[place + 1 : place + 2]
    if first == "\\":
        return place + (3 if text.startswith("\\\r\n", place) else 2)
    if first == "'" or (first == "$" and second == "'"):
        return _end_of_single(text, place, escapes=first == "$")
    if first in '"`(':
        return _scan(text, place, place + 1, ")" if first == "(" else first, depth)
    if second in ("(", "{"):
        return _scan(text, place, place + 2, ")" if second == "(" else "}", depth)
    found = _SIMPLE.match(text, place)
    return found.end() if found else place + 1


def _end_of_single(text: str, place: int, escapes: bool) -> int:
    found = re.compile(r"\$'(?:\\.|[^'\\])*'" if escapes else r"'[^']*'", re.S).match(text, place)
    if found is None:
        raise _no_end(text, place)
    return found.end()


def _scan(text: str, began: int, place: int, closer: str, depth: int) -> int:
    while (found := _STOPS[closer].search(text, place)) is not None:
        if found[0] == closer:
            return found.end()
        place = found.end() if found[0][0] == "#" else end_of(text, found.start(), depth + 1)
    raise _no_end(text, began)


def _no_end(text: str, place: int) -> ConfigError:
    return ConfigError(f"line {_line(text, place)} of the script cannot be read: a quote or a bracket has no end")


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _special(source: str, quoted: bool) -> list[Part]:
    """Return the parts of a quote, an expansion or an escape."""
    if source[0] == "\\":
        if source[1:] in ("\n", "\r\n"):  # a line that goes on
            return []
        kept = quoted and source[1:] not in tuple('"\\$`')
        return [Part(source if kept else source[1:], quoted=True)]
    if source[0] == "'":
        return [Part(source[1:-1], quoted=True)]
    if source[0] == '"':
        return list(split_quoted(source[1:-1]))
    return [Part(source, quoted, expands=source != "$")]


class _Splitter:
    def __init__(self, text: str):
        self._text = text
        self._place = 0
        self._line = 1
        self._tokens: list[Token] = []
        self._documents: list[tuple[Token, Token]] = []
        """Each `<<` of the current line, with the word that ends its document."""

    def split(self) -> list[Token]:
        while self._place < len(self._text):
            text, place = self._text, self._place
            if (found := _SPACE.match(text, place)) is not None:
                self._advance(found.end())
            elif text[place] == "\n":
                self._take("operator", place + 1)
                self._read_documents()
            else:
                self._take_token()
        return self._tokens

    def _take_token(self) -> None:
        text, place = self._text, self._place
        if text.startswith("((", place):
            self._take("arithmetic", end_of(text, place))
        elif text[place : place + 2] in ("<(", ">("):
            end = end_of(text, place + 1)
            self._take("word", end, (Part(text[place:end], expands=True),))
        elif (found := _REDIRECTION.match(text, place)) is not None:
            self._take("redirection", found.end())
        elif (found := _OPERATOR.match(text, place)) is not None:
            self._take("operator", found.end())
        else:
            self._take_word()

    def _take(self, kind: str, end: int, parts: tuple[Part, ...] = ()) -> None:
        source = self._text[self._place : end]
        glued = bool(self._tokens) and self._place > 0 and not self._text[self._place - 1].isspace()
        token = Token(kind, source, self._line, parts, glued and self._tokens[-1].kind == "word")
        if self._tokens and self._tokens[-1].text in ("<<", "<<-") and kind == "word":
            self._documents.append((self._tokens[-1], token))
        self._tokens.append(token)
        self._advance(end)

    def _advance(self, end: int) -> None:
        self._line += self._text.count("\n", self._place, end)
        self._place = end

    def _take_word(self) -> None:
        text, place = self._text, self._place
        parts: list[Part] = []
        while place < len(text):
            if place > self._place and (found := _BLANK.match(text, place)) is not None:
                parts.append(Part(found[0].replace(" ", "_")))  # one word, even if its variable is not quoted
                place = found.end()
                continue
            if text[place] in " \t\r\n;|&()<>":
                break
            if text[place] in "'\"\\`" or (text[place] == "$" and text[place + 1 : place + 2] != '"'):
                end = min(end_of(text, place), len(text))
                parts += _special(text[place:end], quoted=False)
            else:
                found = _PLAIN.match(text, place)
                assert found is not None, "all else ends a word"
                end = found.end()
                parts += [Part(found[0])] if found[0] != "$" else []  # before a quote that is to be translated
            place = end
        self._take("word", place, tuple(parts))

    def _read_documents(self) -> None:
        for start, delimiter in self._documents:
            word = "".join(part.text for part in delimiter.parts)
            tabs = r"\t*" if start.text == "<<-" else ""
            found = re.compile(rf"^{tabs}{re.escape(word)}\r?$", re.M).search(self._text, self._place)
            body = self._text[self._place : found.start() if found else len(self._text)]
            if delimiter.text == word:  # not quoted, so the document is expanded
                body = re.sub(r"\\([$`\\])", r"\1", body)
            start.document = body
            self._advance(found.end() if found else len(self._text))
        self._documents.clear()
