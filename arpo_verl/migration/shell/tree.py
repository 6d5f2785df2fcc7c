"""The commands of a script, and what decides which of them run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from arpo_verl.migration.shell.words import Token


@dataclass(frozen=True)
class Simple:
    """A command of words. `documents` are its here-documents, `redirected` whether its output goes elsewhere."""

    words: tuple[Token, ...]
    documents: tuple[str, ...] = ()
    redirected: bool = False


@dataclass(frozen=True)
class Array:
    """`NAME=(words)`, or `NAME+=(words)`, which adds to it."""

    name: str
    adds: bool
    words: tuple[Token, ...]


@dataclass(frozen=True)
class Arithmetic:
    """`((source))`."""

    source: str


@dataclass(frozen=True)
class Chain:
    """Statements, each run where the one before ended as its `&&` or `||` asks."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True)
class If:
    """The first arm whose test holds is run; an `else` is an arm without a test."""

    arms: tuple[tuple[Block, Block], ...]


@dataclass(frozen=True)
class Case:
    """The first arm with a pattern that fits the subject is run."""

    subject: Token
    arms: tuple[tuple[tuple[Token, ...], Block], ...]


@dataclass(frozen=True)
class Loop:
    """`for NAME in words`; without a name it runs as often as `test` holds, with None as words over the arguments."""

    name: str | None
    words: tuple[Token, ...] | None
    test: Block
    body: Block


@dataclass(frozen=True)
class Function:
    """A function's definition."""

    name: str
    body: Block


@dataclass(frozen=True)
class CommandGroup:
    """Commands in brackets. A subshell, a part of a pipe or a job in the background assigns for itself alone."""

    body: Block
    is_subshell: bool


Node: TypeAlias = Simple | Array | Arithmetic | Chain | If | Case | Loop | Function | CommandGroup
Block: TypeAlias = tuple[Node, ...]
