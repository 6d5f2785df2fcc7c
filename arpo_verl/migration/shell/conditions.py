"""This module decides the conditions that depend on the script alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence

from arpo_verl.migration.shell.tree import Block, Simple
from arpo_verl.migration.shell.values import Field

_UNSET_TEST = re.compile(r"-z\s+\"?\$\{?([A-Za-z_]\w*)")
_EMPTY_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?[-+](?:\}|\w\})")
"""An expansion that asks whether the caller has set a variable, which no caller does here."""
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__,
    "-ne": int.__ne__,
    "-lt": int.__lt__,
    "-le": int.__le__,
    "-gt": int.__gt__,
    "-ge": int.__ge__,
}


def decide(sources: Sequence[str], fields: Sequence[Field], assigned: Collection[str]) -> bool | None:
    """Return whether `[ ... ]` holds; None if only running the script could show it.

    Args:
        sources: the condition's words as written.
        fields: the words after expansion.
        assigned: names that the script has assigned.
    """
    asks_if_set = any(name not in assigned for name in _EMPTY_DEFAULT.findall(" ".join(sources)))
    if asks_if_set or any(found.because is not None for found in fields):
        return None
    if any(re.search(r"[*?<>|&(]", text) for text in sources):
        return None
    match [found.text for found in fields if found.text not in ("]", "]]")]:
        case ["-z", text]:
            return not text
        case ["-n", text]:
            return bool(text)
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, compare, right] if compare in _NUMBERS and (left + right).isdecimal():
            return _NUMBERS[compare](int(left[:20]), int(right[:20]))
    return None


def tested_unset(test: Block) -> set[str]:
    """Return the names that `[ -z "$NAME" ]` asks for: a value assigned under that condition is a default."""
    sources = [" ".join(word.text for word in node.words) for node in test if isinstance(node, Simple)]
    return {name for source in sources for name in _UNSET_TEST.findall(source)}


def is_literal(pattern: str) -> bool:
    """Return whether a pattern of `case` is short and has only letters and wildcards."""
    return re.fullmatch(r"[\w.*?/:@+-]{1,100}", pattern) is not None
