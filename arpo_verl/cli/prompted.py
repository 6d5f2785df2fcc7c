"""Replies typed at a prompt."""

from __future__ import annotations

from collections.abc import Callable

from arpo_verl.actions.grammars import Grammar
from arpo_verl.cli.replies import SEPARATOR
from arpo_verl.errors import ActionParseError
from arpo_verl.types import Size


class PromptedReplies:
    """Asks for one reply a screenshot; a malformed one, which would end a policy's episode, is asked for again."""

    def __init__(self, grammar: Grammar, image_size: Size | None, say: Callable[[str], None]):
        self._grammar = grammar
        self._image_size = image_size
        self._say = say
        self._count = 0

    def __call__(self, screen: Size) -> str | None:
        self._count += 1
        while True:
            self._say(f"reply {self._count}; end it with a line of {SEPARATOR}, or the episode with Ctrl-D:")
            text = _read_block()
            if text is None:
                return None
            try:
                self._grammar.parse(text, self._image_size or screen, screen)
                return text
            except ActionParseError as error:
                self._say(f"  malformed, and a policy's episode would end here: {error}")


def _read_block() -> str | None:
    """Lines up to `---` or the end of input; None where the input ended before any text."""
    lines: list[str] = []
    while True:
        try:
            line = input()
        except EOFError:
            return "\n".join(lines).strip() or None
        if line.rstrip() == SEPARATOR:
            return "\n".join(lines).strip()
        lines.append(line)
