"""The command of a training script, read as text: nothing of the script is ever run.

Words, quotes, comments, continued lines and `NAME=VALUE` are understood, and `$NAME`, `${NAME}` and `${NAME:-VALUE}`
are replaced by what the script assigns. What only a shell can know (a command's output, arithmetic, the environment) is
kept as unreadable, and matters where an option needs it. Control flow is refused: it decides which assignment counts;
and so is what assigns in another way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from arpo_verl.errors import ConfigError

MAX_BYTES = 256 * 1024
TRAINERS = ("verl.trainer.main", "verl/trainer/main.py")
STOCK_TRAINER = "verl.trainer.main_ppo"
MAX_VALUE = 16 * 1024
CONTROL_FLOW = {*"if then elif else fi for while until do done case esac select function eval source . { } ( )".split()}
ASSIGNING = {*"declare typeset local readonly unset read mapfile readarray getopts let".split()}

_NAME = r"[A-Za-z_]\w*"
_ASSIGNMENT = re.compile(rf"({_NAME})(\+?)=(.*)", re.S)
_OVERRIDE = re.compile(rf"({_NAME}(?:\.\w+)*)=(.*)", re.S)
_COMPUTED = re.compile(rf"\b({_NAME})\s*(?:[-+*/%]?=(?!=)|\+\+|--)")
_TOKEN = re.compile(
    rf"""
      (?P<space>[ \t\r]+|\\\r?\n)
    | (?P<arithmetic>\(\([^\n]*?\)\))
    | (?P<redirection>\d*[<>]+&?[ \t]*[^\s|;&<>]+)
    | (?P<end>[\n;|&]+|[()])
    | (?P<single>'[^']*')
    | (?P<double>"(?:\\.|[^"\\])*")
    | (?P<command>\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`)
    | (?P<variable>\$(?:{_NAME}|[\d@*\#?!$-])|\$\{{[^}}]{{0,1000}}\}}|\$'(?:\\.|[^'\\])*')
    | (?P<escaped>\\.)
    | (?P<plain>[^\s'"\\$`;|&()<>]+|[$\\])
    """,
    re.X | re.S,
)
_INNER = re.compile(rf"\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|\$(?:{_NAME}|[\d@*#?!$-])|\$\{{[^}}]{{0,1000}}\}}|\\.", re.S)
_BRACES = re.compile(rf"\$\{{({_NAME})(?::?-(.*))?\}}", re.S)
_JOINT = re.compile(r"&&|\|\||[|&()]")
_REMEDY = "write its variables and its training command alone to a file, and convert that"


@dataclass(frozen=True)
class Unreadable:
    """A value that only running the script could tell."""

    because: str


@dataclass(frozen=True)
class Command:
    """What a script starts the trainer with.

    Attributes:
        config: the YAML file that it names by `config=`, or None.
        overrides: option -> its text, or why that cannot be read.
    """

    config: str | None
    overrides: dict[str, str | Unreadable]


def read_script(text: str) -> Command:
    """The training command of a shell script.

    Raises:
        ConfigError: it starts no training of theirs or several, or decides by control flow what it starts.
    """
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise ConfigError(f"a training script must have at most {MAX_BYTES} bytes; got more")
    commands = [words for words in _Reader(text).statements() if _trainer(words) is not None]
    if len(commands) != 1:
        known = f"one command with `{TRAINERS[0]}`"
        raise ConfigError(f"a script to convert must have {known}, got {len(commands)}; give each a file of its own")
    words = commands[0]
    overrides: dict[str, str | Unreadable] = {}
    for word in words[_trainer(words) :]:
        found = _OVERRIDE.fullmatch(word.text)
        if word.splits:
            raise ConfigError(f"a shell splits {word.text[:100]!r} at its spaces; put its variable in double quotes")
        if found is None and (word.text or word.unreadable):
            raise ConfigError(f"every word behind `{TRAINERS[0]}` must be KEY=VALUE, got {word.text[:100]!r}")
        if found is not None:
            overrides[found[1]] = found[2] if word.unreadable is None else Unreadable(word.unreadable)
    config = overrides.pop("config", None)
    if isinstance(config, Unreadable):
        raise ConfigError(f"config= of the script cannot be read: {config.because}; name the file by --config")
    return Command(config, overrides)


@dataclass
class _Word:
    text: str = ""
    unreadable: str | None = None
    quoted: bool = False
    splits: bool = False
    """Where it is no assignment: an unquoted variable in it has spaces."""


def _trainer(words: list[_Word]) -> int | None:
    """Where the trainer's own words begin."""
    for place, word in enumerate(words):
        if word.text == STOCK_TRAINER:
            raise ConfigError(
                f"the script starts veRL ({STOCK_TRAINER}), whose options are a recipe's own; write them into one, "
                "with the defaults ppo_trainer and arpo (docs/recipes.md)"
            )
        if word.text.endswith(TRAINERS):
            return place + 1
    return None


class _Reader:
    def __init__(self, text: str):
        self._text = text
        self._variables: dict[str, _Word] = {}

    def statements(self) -> Iterator[list[_Word]]:
        """Every simple command with its variables replaced; assignments are kept for what follows."""
        words: list[_Word] = []
        always = True  # unless what stands before decides
        for kind, token in self._tokens():
            if kind == "end":
                joints = set(_JOINT.findall(token))
                if brackets := joints & {"(", ")"}:
                    raise _not_followed(min(brackets))
                # What is piped or put in the background assigns for itself alone.
                yield from self._close(words, always and not joints & {"|", "&"})
                words, always = [], not joints & {"&&", "||", "|"}
            elif kind == "space":
                if words and words[-1] is not _GAP:
                    words.append(_GAP)
            elif kind == "arithmetic" and not words:
                for name in _COMPUTED.findall(token):
                    self._variables[name] = _Word(unreadable=f"`{token[:100]}` is not computed")
            elif kind == "redirection" and "<<" in token:
                raise ConfigError(f"the script has a here-document ({token}), which is not read; {_REMEDY}")
            elif kind != "redirection":
                if not words or words[-1] is _GAP:
                    words.append(_Word())
                self._add(words[-1], kind, token)
        yield from self._close(words, always)

    def _tokens(self) -> Iterator[tuple[str, str]]:
        place, at_word_start = 0, True
        while place < len(self._text):
            if at_word_start and self._text[place] == "#":
                end = self._text.find("\n", place)
                place = len(self._text) if end < 0 else end
                continue
            found = _TOKEN.match(self._text, place)
            if found is None:
                line = self._text.count("\n", 0, place) + 1
                raise ConfigError(f"line {line} of the script cannot be read: a quote or a bracket has no end")
            assert found.lastgroup is not None
            yield found.lastgroup, found[0]
            at_word_start = found.lastgroup in ("space", "end", "redirection", "arithmetic")
            place = found.end()

    def _close(self, words: list[_Word], always: bool) -> Iterator[list[_Word]]:
        words = [word for word in words if word is not _GAP]
        exports = bool(words) and words[0].text == "export"
        words = words[exports:]
        assigned: dict[str, _Word] = {}
        while words and (found := _ASSIGNMENT.fullmatch(words[0].text)) is not None:
            name, added, value = found.groups()
            because = words[0].unreadable if always else f"whether {name} is assigned depends on a command"
            assigned[name] = _Word(value, f"`{name}+=` is not computed" if added else because)
            words = words[1:]
        if exports or not words:  # else they are that one command's
            self._variables |= assigned
        if words and not words[0].quoted and words[0].text in CONTROL_FLOW | ASSIGNING:
            raise _not_followed(words[0].text)
        if words:
            yield words

    def _add(self, word: _Word, kind: str, token: str) -> None:
        if kind == "single":
            word.text, word.quoted = word.text + token[1:-1], True
        elif kind == "escaped":
            word.text += token[1:]
        elif kind == "double":
            word.quoted = True
            self._expand(word, token[1:-1])
        elif kind in ("variable", "command"):
            before = len(word.text)
            self._replace(word, token)
            word.splits |= bool(re.search(r"\s", word.text[before:]))
        else:
            word.text += token

    def _expand(self, word: _Word, text: str) -> None:
        """Within double quotes."""
        place = 0
        for found in _INNER.finditer(text):
            word.text += text[place : found.start()]
            place = found.end()
            if found[0][0] == "\\":
                word.text += "" if found[0] == "\\\n" else found[0][1:] if found[0][1] in '"\\$`' else found[0]
            else:
                self._replace(word, found[0])
        word.text += text[place:]

    def _replace(self, word: _Word, token: str) -> None:
        """A variable by its value."""
        braces = _BRACES.fullmatch(token)
        name = braces[1] if braces else token[1:]
        if token in ("$@", "$*"):
            return  # no arguments are given here
        if token.startswith(("`", "$(")) or not re.fullmatch(_NAME, name):
            word.unreadable = f"`{token[:100]}` is not computed"
        elif name in self._variables:
            value = self._variables[name]
            word.text, word.unreadable = word.text + value.text, word.unreadable or value.unreadable
            if len(word.text) > MAX_VALUE:
                raise ConfigError(f"the script's variable {name} must come to at most {MAX_VALUE} characters, got more")
        elif braces and braces[2] is not None:
            self._expand(word, braces[2])
        else:
            word.unreadable = f"the script does not assign {name}"


def _not_followed(word: str) -> ConfigError:
    return ConfigError(f"the script has `{word}`, which only running it could follow; {_REMEDY}")


_GAP = _Word()
