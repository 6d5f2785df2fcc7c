"""These are the nodes of a parsed script: its commands, and the blocks that decide which of them run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from arpo_verl.migration.shell.words import Token


@dataclass(frozen=True)
class Simple:
    """A simple command has words and perhaps here-documents; `redirected` says whether its output goes elsewhere."""

    words: tuple[Token, ...]
    documents: tuple[str, ...] = ()
    redirected: bool = False


@dataclass(frozen=True)
class Array:
    """An array is `NAME=(words)`, or `NAME+=(words)`, which adds to it."""

    name: str
    adds: bool
    words: tuple[Token, ...]


@dataclass(frozen=True)
class Arithmetic:
    """An arithmetic command is `((source))`."""

    source: str


@dataclass(frozen=True)
class Chain:
    """In a chain each statement runs if the one before succeeded (`&&`) or failed (`||`)."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclass(frozen=True)
class If:
    """The first arm whose test holds runs; an `else` is an arm without a test."""

    arms: tuple[tuple[Block, Block], ...]


@dataclass(frozen=True)
class Case:
    """The first arm with a pattern that fits the subject runs."""

    subject: Token
    arms: tuple[tuple[tuple[Token, ...], Block], ...]


@dataclass(frozen=True)
class Loop:
    """A loop is `for NAME in words`, over the arguments if `words` is None; without a name it runs by its `test`."""

    name: str | None
    words: tuple[Token, ...] | None
    test: Block
    body: Block


@dataclass(frozen=True)
class Function:
    """This is a function's definition."""

    name: str
    body: Block


@dataclass(frozen=True)
class CommandGroup:
    """A group has commands in brackets. A subshell, a part of a pipe or a background job keeps its assignments."""

    body: Block
    is_subshell: bool


Node: TypeAlias = Simple | Array | Arithmetic | Chain | If | Case | Loop | Function | CommandGroup
Block: TypeAlias = tuple[Node, ...]
