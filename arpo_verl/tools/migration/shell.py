"""The commands of a shell script with the values of its variables, read as text and never run.

A variable has a value only if the script assigns it once, by a plain `NAME=VALUE` in its main line. Whatever else may
set it (a second assignment, a branch, a loop, a function, arithmetic, `read`) makes it unreadable, with the line that
does so. Python's `shlex` does not fit: it loses which `$` was quoted, and reads a `#` within a word as a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from arpo_verl.errors import ConfigError

MAX_DEPTH = 40
"""Deepest nesting of quotes and brackets."""
MAX_TEXT = 1024 * 1024
"""Most characters of all words after expansion."""
DECLARING = {"export", "readonly"}
SAYING = {"echo", "log", "pkill", "pgrep", "grep", "ps", "printf", "wandb"}
"""Commands that may name a variable or the trainer without setting or starting it."""

_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t]|\\\n|\#[^\n]*)+)
      | (?P<redirection>\d*(?:<<<|<<-?|<>|<&|>&|>\||>>|[<>](?!\())|&>>?)
      | (?P<operator>(?!\(\()(?:\n|;;&?|;&|&&|\|\||\|&|[;|&()]))""",
    re.X,
)
_PLACEHOLDER = re.compile(r"<[A-Za-z][^<>\n;|&()$`'\"\\]{0,80}>(?=[\s/]|$)")
"""A word such as `<your path>`. A shell would read from such a file, and write into the next option."""
_PARAMETER = re.compile(r"\$(?:[A-Za-z_]\w*|[\d@*#?!$-])")
# For each closing character, the characters that matter on the way to it.
_STOPS = {
    '"': re.compile(r"[\\$`\"]"),
    "`": re.compile(r"[\\`]"),
    ")": re.compile(r"(?<=\s)#[^\n]*|[\\$`\"'()]"),
    "}": re.compile(r"[\\$`\"}]"),
}
_CLOSING = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "{": "}"}
_BEFORE_COMMAND = {"if", "while", "until", "{", "then", "elif", "else", "do", "!", "time"}
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_NAMED = re.compile(r"([A-Za-z_]\w*)(?:\+?=|\[|$)")
_COMPUTED = re.compile(r"(?:\+\+|--)\s*([A-Za-z_]\w*)|\b([A-Za-z_]\w*)\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))")
_DEFAULTED = re.compile(r"\$\{([A-Za-z_]\w*):?=")
_VALUE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([\w./:,+@%-]*))?\})")
# What a shell changes in a word outside of double quotes and within them. It makes several words of `{a,b}`.
_SPECIAL = {False: re.compile(r"[\\$`'\"({]|(?:^|(?<=[:=]))~"), True: re.compile(r"[\\$`]")}


@dataclass(frozen=True)
class Field:
    """A word after expansion; `because` says why only running the script could show it, if that is so."""

    text: str
    because: str | None = None


@dataclass
class Statement:
    """A plain command as written.

    Attributes:
        line: line number of its first word, from 1.
        is_nested: whether it is in a branch, a loop, a function or brackets.
        before: the operator before it.
        words: its words with their quotes.
        lines: the line number of each word.
        after: the operator after it.
        document: its here-documents.
        fields: its words after expansion.
    """

    line: int
    is_nested: bool
    before: str
    words: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    after: str = ""
    document: str = ""
    fields: tuple[Field, ...] = ()

    @property
    def is_certain(self) -> bool:
        """Whether it runs exactly once, in the script's own shell."""
        return not self.is_nested and self.before not in ("&&", "||", "|", "|&") and self.after not in ("|", "|&", "&")

    @property
    def assignments(self) -> list[str]:
        """Its words that assign, if it does nothing else."""
        words = self.words[1:] if self.words and self.words[0] in DECLARING else self.words
        return words if words and all(_ASSIGNED.match(word) for word in words) else []

    @property
    def is_saying(self) -> bool:
        """Whether it only prints or looks for its words."""
        name = next((word for word in self.words if not _ASSIGNED.match(word)), "")
        return name.rpartition("/")[2] in SAYING and "-v" not in self.words


def read_commands(text: str) -> Iterator[Statement]:
    """Yield every command that a script may start, in the script's order.

    Raises:
        ConfigError: a quote or bracket has no end, or the words are too long; the message names the line.
    """
    statements = list(_split(text.replace("\r\n", "\n")))
    variables = _Variables(statements, has_own_spaces="IFS" in text)
    for statement in statements:
        if statement.is_certain and statement.words[:1] == ["exit"]:
            return
        statement.fields = variables.follow(statement)
        if statement.fields or statement.document:
            yield statement


def shorten(value: object) -> str:
    """Return its text on one line, of at most 60 characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- Statements ------------------------------------------------------------------------------------------------------


def _split(text: str) -> Iterator[Statement]:
    """Yield the plain commands of a script, each with the operators around it."""
    blocks: list[str] = []
    """What closes each block that is open here."""
    current = Statement(1, False, "")
    for kind, word, line in _tokens(text):
        if kind == "operator":
            if current.words or current.document:
                current.after = word
                yield current
            if word == "(":
                blocks.append(")")
            elif blocks[-1:] == [word]:  # else it ends a pattern of `case`
                blocks.pop()
            current = Statement(line, bool(blocks), word)
        elif kind == "document":
            current.document += word
        elif current.words and current.words != ["function", current.words[-1]]:
            current.words.append(word)
            current.lines.append(line)
        else:  # where a command begins
            if word in _CLOSING:
                blocks.append(_CLOSING[word])
            elif blocks[-1:] == [word]:
                blocks.pop()
            is_keyword = word in _CLOSING.values() or word in _BEFORE_COMMAND
            current.words, current.lines = ([], []) if is_keyword else ([word], [line])
            current.line, current.is_nested = line, bool(blocks)
    if current.words or current.document:
        yield current


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield the kind, the source and the line of each word, operator and here-document; redirections are left out."""
    place, line = 0, 1
    endings: list[str] = []  # the words that end the here-documents of this line
    redirection = ""
    while place < len(text):
        found = _TOKEN.match(text, place)
        end, kind = (found.end(), found.lastgroup) if found else (_end_of_word(text, place), "word")
        source = text[place:end]
        if kind == "word" and redirection:
            endings += [re.sub(r"[\\'\"]", "", source)] if redirection in ("<<", "<<-") else []
            kind = redirection = ""
        elif kind != "space":
            redirection = source.lstrip("0123456789") if kind == "redirection" else ""
        for ending in endings if source == "\n" else ():
            closed = re.compile(rf"^\t*{re.escape(ending)}$", re.M).search(text, end)
            begin, end = end, closed.end() if closed else len(text)
            yield "document", text[begin:end], line
        endings = [] if source == "\n" else endings
        if kind in ("word", "operator"):
            yield kind, source, line
        line += text.count("\n", place, end)
        place = end


def _end_of_word(text: str, place: int) -> int:
    start = place
    while place < len(text) and (place == start or text[place] not in " \t\n;|&)"):
        if (found := _PLACEHOLDER.match(text, place)) is not None:
            place = found.end()
        elif text[place] in "<>" and text[place + 1 : place + 2] == "(":
            place = _end(text, place + 1)
        elif text[place] in "<>" or (text[place] == "(" and place > start and text[place - 1] != "="):
            break
        else:
            place = _end(text, place)
    return place


def _end(text: str, place: int, depth: int = 0) -> int:
    """Return where the quote, expansion, bracket, escape or letter ends that begins at `place`."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"{_where(text, place)} has more than {MAX_DEPTH} nested brackets")
    first, second = text[place], text[place + 1 : place + 2]
    if first == "\\":
        return min(place + 2, len(text))
    if first == "'" or (first == "$" and second == "'"):
        found = re.compile(r"\$'(?:\\.|[^'\\])*'" if first == "$" else r"'[^']*'", re.S).match(text, place)
        if found is None:
            raise ConfigError(f"{_where(text, place)} cannot be read: a quote has no end")
        return found.end()
    if first in '"`(':
        return _scan(text, place + 1, ")" if first == "(" else first, depth)
    if first == "$" and second in ("(", "{", '"'):
        return _scan(text, place + 2, {"(": ")", "{": "}"}.get(second, second), depth)
    found = _PARAMETER.match(text, place)
    return found.end() if found else place + 1


def _scan(text: str, start: int, closer: str, depth: int) -> int:
    place = start
    while (found := _STOPS[closer].search(text, place)) is not None:
        if found[0] == closer:
            return found.end()
        place = found.end() if found[0][0] == "#" else _end(text, found.start(), depth + 1)
    raise ConfigError(f"{_where(text, start)} cannot be read: a quote or a bracket has no end")


def _where(text: str, place: int) -> str:
    return f"line {text.count(chr(10), 0, place) + 1} of the script"


# --- Values ----------------------------------------------------------------------------------------------------------


class _Variables:
    """The values of a script's variables, as far as its text shows them."""

    def __init__(self, statements: list[Statement], has_own_spaces: bool):
        self._values: dict[str, Field] = {}
        self._has_own_spaces = has_own_spaces
        self._left = MAX_TEXT
        self._line = 0
        """The line of the word that is expanded."""
        self._pending: set[str] = set()
        """The variables that a later statement sets."""
        self._decided: dict[str, int] = {}
        """Each variable that more than one plain assignment sets -> the line that does so."""
        for statement in statements:
            for name, is_plain in _targets(statement):
                if not is_plain or name in self._pending:
                    self._decided.setdefault(name, statement.line)
                self._pending.add(name)

    def follow(self, statement: Statement) -> tuple[Field, ...]:
        """Return a statement's words after expansion; of an assignment only what is unreadable."""
        if not (statement.is_certain and statement.assignments):
            return tuple(
                Field(part, because)
                for word, self._line in zip(statement.words, statement.lines, strict=True)
                for text, because in [self._expand(word, statement, quoted=False, splits=True)]
                for part in text.split("\0")
                if part
            )
        values: dict[str, str] = {}
        because = None
        for word, self._line in zip(statement.assignments, statement.lines[-len(statement.assignments) :], strict=True):
            name, _, source = word.partition("=")
            values[name], why = self._expand(source, statement, quoted=False, splits=False)
            because = because or why
        # If a shell cannot expand one value, it makes no assignment of the statement.
        self._values |= {name: Field(text, because) for name, text in values.items()}
        self._pending -= values.keys()
        return () if because is None else tuple(Field(word, because) for word in statement.assignments)

    def _expand(self, source: str, statement: Statement, quoted: bool, splits: bool) -> tuple[str, str | None]:
        """Return the text of a word, and why it is unreadable, or None.

        Args:
            quoted: whether the source stands between double quotes.
            splits: whether a shell splits values at spaces, which become "\\0".
        """
        made: list[str] = []
        because = None
        place = 0
        while (found := _SPECIAL[quoted].search(source, place)) is not None:
            made.append(source[place : found.start()])
            place = _end(source, found.start())
            piece, why = source[found.start() : place], None
            if piece[0] == "'":
                piece = piece[1:-1]
            elif piece[0] == '"':
                piece, why = self._expand(piece[1:-1], statement, quoted=True, splits=False)
            elif piece[0] == "\\":
                piece = piece[1:].strip("\n") if not quoted or piece[1:] in tuple('\n"\\$`') else piece
            elif piece in ("{", "~"):
                why = self._unknown(source)
            elif piece != "$":
                value = self._value(piece, statement, splits)
                piece, why = value.text, value.because
                piece = re.sub(r"[ \t\n]+", "\0", piece) if splits and why is None else piece
            made.append(piece)
            because = because or why
        made.append(source[place:])
        self._left -= sum(len(piece) for piece in made)
        if self._left < 0:
            raise ConfigError(f"line {statement.line} of the script cannot be read: its words are too long")
        return "".join(made), because

    def _value(self, source: str, statement: Statement, splits: bool) -> Field:
        """Return the value of `$NAME`, `${NAME}` or `${NAME:-default}`; unreadable for all else."""
        unknown = Field(source, self._unknown(source))
        found = _VALUE.fullmatch(source)
        if found is None:
            return unknown
        name, default = found[1] or found[2], found[3]
        if name in self._decided:
            return Field(source, f"line {self._decided[name]} of the script decides {name}")
        value = self._values.get(name)
        if default is not None and value in (None, Field("")):
            value = Field(default)
        # A function may run before or after a later assignment, and IFS changes where values are split.
        if value is None or (statement.is_nested and name in self._pending) or (splits and self._has_own_spaces):
            return unknown
        return value if value.because is None else Field(source, value.because)

    def _unknown(self, source: str) -> str:
        return f"line {self._line}: only running the script shows `{shorten(source)}`"


def _targets(statement: Statement) -> Iterator[tuple[str, bool]]:
    """Yield each variable that a statement may set, and whether by a plain assignment."""
    is_plain = statement.is_certain and bool(statement.assignments)
    pattern = _ASSIGNED if DECLARING.intersection(statement.words[:1]) else _NAMED
    for word in statement.words:
        _, is_computed, computed = word.partition("((") if statement.words[0] != "let" else ("", True, word)
        names = [*_DEFAULTED.findall(word), *(name for pair in _COMPUTED.findall(computed) for name in pair if name)]
        yield from ((name, False) for name in names)
        found = _ASSIGNED.match(word) if is_plain else pattern.match(re.sub(r"[\\'\"]", "", word))
        if found is not None and (is_plain or not (is_computed or statement.is_saying)):
            yield found[1], is_plain and not found[2]
