"""Sort arguments that an action does not read: those that mean nothing, and those that would change it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from arpo_verl.agent.actions.calls import excerpt
from arpo_verl.errors import ActionParseError

# A direction or a button; a switch; a modifier.
_WORD = re.compile(
    r"\s*(?:(?:up|down|left|right|middle|double|triple)(?:wards?|[-_ ]?(?:click|button))?|horizontal|true|yes|on|"
    r"ctrl|control|shift|alt|win|super|meta|cmd|command|option)\s*",
    re.IGNORECASE,
)
# A number or a position, in any form that models write.
_NUMBERS = re.compile(
    r"(?=\D*\d)(?:[-+\d\s.,:;=%xy()\[\]{}]|p(?:x|ixels?)|times|clicks?|notch(?:es)?|lines?|</?(?:point|bbox)>|"
    r"<\|box_(?:start|end)\|>)+",
    re.ASCII | re.IGNORECASE,
)
# Names whose values always mean a place, an amount or a key.
_NAMES = re.compile(
    r"[xy]\d?|axis|offset|distance|(?:(?:start|end|target|from|to)_?)?(?:b?box|point|coordinates?|pos|position)\d?|"
    r"(?:\w*_)?(?:amount|clicks|count|notches|presses|times)|repeats?|hold|(?:hold_?|hot|modifier_?)?keys?|modifiers?",
    re.ASCII | re.IGNORECASE,
)
_TYPED = frozenset({"text", "content"})


def changes_meaning(action: str, name: str, value: object) -> bool:
    """Return whether an unread argument is a position, a direction, an amount, a key or a switch, or text beside keys.

    Everything else is a remark: nothing, an empty text or list, false, or words such as `the red button`.
    """
    if isinstance(value, str):
        named = _NAMES.fullmatch(name) or (name in _TYPED and action in ("hotkey", "key"))
        return bool(value.strip() and (named or _WORD.fullmatch(value) or _NUMBERS.fullmatch(value)))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return True
    return bool(value)


def refuse_leftovers(name: str, arguments: Mapping[str, Any], read: Collection[str]) -> None:
    """Refuse a call with unread arguments that would change what it does.

    Args:
        name: the action's name.
        arguments: the call's arguments, without its action.
        read: the names of those that the action reads.

    Raises:
        ActionParseError: names these arguments.
    """
    left = [key for key, value in arguments.items() if key not in read and changes_meaning(name, key, value)]
    if not left:
        return
    shown = ", ".join(excerpt(key[:40]).strip("'\"") for key in left[:4])[:200]
    raise ActionParseError(f"{name} takes {', '.join(read)}, not {shown}: it would do something else than is written")
