"""This module parses words into commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from arpo_verl.errors import ConfigError
from arpo_verl.migration.shell.tree import (
    Arithmetic,
    Array,
    Block,
    Case,
    Chain,
    CommandGroup,
    Function,
    If,
    Loop,
    Node,
    Simple,
)
from arpo_verl.migration.shell.words import MAX_DEPTH, Token, split_words

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
"""The beginning of a word that assigns."""

_OPENING = {"if", "while", "until", "for", "select", "case", "function", "{", "(", "[["}
_STRAY = {"then", "elif", "else", "fi", "do", "done", "esac", "}", ")", ";;", ";&", ";;&"}


def parse(text: str) -> Block:
    """Parse a script.

    Raises:
        ConfigError: it is no shell script that we can follow; the message names the line.
    """
    parser = _Parser(split_words(text))
    block = parser.block(frozenset())
    parser.expect_end()
    return block


class _Parser:
    def __init__(self, tokens: list[Token]):
        self._tokens = tokens
        self._place = 0
        self._depth = 0

    def block(self, ends: frozenset[str]) -> Block:
        """Read statements up to one of the words in `ends`, which is not consumed."""
        nodes: list[Node] = []
        while True:
            while self._next() in (";", "\n", "&"):
                self._place += 1
            if self._next() == "" or self._next() in ends:
                return tuple(nodes)
            nodes += self._statement()

    def expect_end(self) -> None:
        if self._next():
            raise self._unexpected()

    # --- Looking -------------------------------------------------------------------------------------------------

    def _next(self) -> str:
        """Return the next token's source; "" at the end."""
        return self._tokens[self._place].text if self._place < len(self._tokens) else ""

    def _kind(self) -> str:
        return self._tokens[self._place].kind if self._place < len(self._tokens) else ""

    def _token(self) -> Token:
        if self._place >= len(self._tokens):
            raise ConfigError("the script ends in the middle of a command")
        self._place += 1
        return self._tokens[self._place - 1]

    def _expect(self, *texts: str) -> str:
        if self._next() not in texts:
            raise self._unexpected()
        return self._token().text

    def _word(self) -> Token:
        if self._kind() != "word":
            raise self._unexpected()
        return self._token()

    def _skip_lines(self) -> None:
        while self._next() == "\n":
            self._place += 1

    def _unexpected(self) -> ConfigError:
        if self._place >= len(self._tokens):
            return ConfigError("the script ends in the middle of a command")
        token = self._tokens[self._place]
        return ConfigError(
            f"line {token.line} of the script cannot be read: `{token.text.strip()[:100]}` is unexpected"
        )

    # --- Statements ----------------------------------------------------------------------------------------------

    def _statement(self) -> list[Node]:
        nodes = self._pipe()
        rest: list[tuple[str, Node]] = []
        while self._next() in ("&&", "||"):
            joint = self._token().text
            self._skip_lines()
            rest.append((joint, _one(self._pipe())))
        nodes = [Chain(_one(nodes), tuple(rest))] if rest else nodes
        return [CommandGroup(tuple(nodes), is_subshell=True)] if self._next() == "&" else nodes

    def _pipe(self) -> list[Node]:
        while self._next() in ("!", "time"):
            self._place += 1
        nodes = self._command()
        if self._next() not in ("|", "|&"):
            return nodes
        nodes = [replace(node, redirected=True) if isinstance(node, Simple) else node for node in nodes]
        parts: list[Node] = [CommandGroup(tuple(nodes), is_subshell=True)]
        while self._next() in ("|", "|&"):
            self._place += 1
            self._skip_lines()
            parts.append(CommandGroup(tuple(self._command()), is_subshell=True))
        return parts

    def _command(self) -> list[Node]:
        text = self._next()
        if text in _STRAY or self._kind() == "operator" and text != "(":
            raise self._unexpected()
        if self._kind() == "arithmetic":
            return [Arithmetic(self._token().text[2:-2])]
        after = self._tokens[self._place + 1 : self._place + 3]
        if len(after) == 2 and after[0].glued and [token.text for token in after] == ["(", ")"]:
            return [self._nested(lambda: self._function(self._token().text))]
        if text not in _OPENING:
            return self._simple()
        node = self._nested(self._compound)
        while self._kind() == "redirection":
            self._place += 1
            self._word()
        return [node]

    def _nested(self, read: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ConfigError(f"the script has more than {MAX_DEPTH} nested blocks; convert a simpler one")
        node = read()
        self._depth -= 1
        return node

    def _compound(self) -> Node:
        opening = self._token().text
        if opening == "if":
            return self._if()
        if opening == "case":
            return self._case()
        if opening == "function":
            return self._function(self._word().text)
        if opening == "[[":
            return self._test()
        if opening in ("while", "until"):
            test = self.block(frozenset({"do"}))
            return Loop(None, None, test, self._do())
        if opening in ("for", "select"):
            return self._for()
        body = self.block(frozenset({")" if opening == "(" else "}"}))
        self._token_or_end()
        return CommandGroup(body, is_subshell=opening == "(")

    def _token_or_end(self) -> None:
        if not self._next():
            raise self._unexpected()
        self._place += 1

    def _if(self) -> Node:
        arms: list[tuple[Block, Block]] = []
        ends = frozenset({"elif", "else", "fi"})
        word = "if"
        while word in ("if", "elif"):
            test = self.block(frozenset({"then"}))
            self._expect("then")
            arms.append((test, self.block(ends)))
            word = self._expect(*ends)
        if word == "else":
            arms.append(((), self.block(frozenset({"fi"}))))
            self._expect("fi")
        return If(tuple(arms))

    def _case(self) -> Node:
        subject = self._word()
        self._skip_lines()
        self._expect("in")
        arms: list[tuple[tuple[Token, ...], Block]] = []
        while True:
            self._skip_lines()
            if self._next() == "esac":
                self._place += 1
                return Case(subject, tuple(arms))
            if self._next() == "(":
                self._place += 1
            patterns = [self._word()]
            while self._next() == "|":
                self._place += 1
                patterns.append(self._word())
            self._expect(")")
            arms.append((tuple(patterns), self.block(frozenset({";;", ";&", ";;&", "esac"}))))
            if self._next() != "esac":
                self._token_or_end()

    def _for(self) -> Node:
        if self._kind() == "arithmetic":
            self._place += 1
            return Loop(None, None, (), self._do())
        name = self._word().text
        words: list[Token] | None = None
        self._skip_lines()
        if self._next() == "in":
            self._place += 1
            words = []
            while self._kind() == "word":
                words.append(self._token())
        return Loop(name, None if words is None else tuple(words), (), self._do())

    def _do(self) -> Block:
        while self._next() in (";", "\n"):
            self._place += 1
        if self._expect("do", "{") == "{":
            body = self.block(frozenset({"}"}))
        else:
            body = self.block(frozenset({"done"}))
        self._token_or_end()
        return body

    def _function(self, name: str) -> Node:
        if self._next() == "(":
            self._place += 1
            self._expect(")")
        self._skip_lines()
        return Function(name, tuple(self._command()))

    def _test(self) -> Node:
        """Read `[[ ... ]]`, within which brackets and bars are no operators."""
        words = [self._tokens[self._place - 1]]
        while words[-1].text != "]]":
            words.append(self._token())
        return Simple(tuple(words))

    # --- A plain command -----------------------------------------------------------------------------------------

    def _simple(self) -> list[Node]:
        arrays: list[Node] = []
        words: list[Token] = []
        documents: list[str] = []
        redirected = False
        while self._kind() in ("word", "redirection") or self._next() == "(":
            token = self._token()
            if token.kind == "redirection":
                redirected |= ">" in token.text
                self._word()
                documents += [token.document] if token.document is not None else []
            elif token.text == "(":
                found = ASSIGNED.fullmatch(words.pop().text) if token.glued and words else None
                if found is None:
                    self._place -= 1
                    raise self._unexpected()
                arrays.append(Array(found[1], bool(found[2]), self._array()))
            else:
                words.append(token)
        node = Simple(tuple(words), tuple(documents), redirected)
        return [*arrays, node] if words or documents or not arrays else arrays

    def _array(self) -> tuple[Token, ...]:
        words: list[Token] = []
        while self._next() != ")":
            self._skip_lines()
            if self._next() != ")":
                words.append(self._word())
        self._place += 1
        return tuple(words)


def _one(nodes: list[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else CommandGroup(tuple(nodes), is_subshell=False)
