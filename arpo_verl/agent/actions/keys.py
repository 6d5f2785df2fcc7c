"""Turn the key names that models write into names that pyautogui's X11 backend presses.

pyautogui silently ignores a key that its backend cannot map (`command` or `volumeup` on X11): the step would count and
do nothing. Here every accepted name presses a key, and any other is a parse error.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from arpo_verl.errors import ActionParseError
from arpo_verl.lib.config import did_you_mean

_NAMED_KEYS = (
    "alt altleft altright apps backspace capslock ctrl ctrlleft ctrlright delete down end enter esc help home insert "
    "left numlock pagedown pageup pause printscreen right scrolllock shift shiftleft shiftright space tab up "
    "win winleft winright num0 num1 num2 num3 num4 num5 num6 num7 num8 num9 "
    "add decimal divide multiply subtract"
).split() + [f"f{n}" for n in range(1, 13)]

_CHARACTER_KEYS = string.ascii_lowercase + string.digits + string.punctuation

KEY_NAMES = frozenset(_NAMED_KEYS) | frozenset(_CHARACTER_KEYS)
"""Canonical names. pyautogui 0.9.54 presses each of them on X11."""

_MODIFIERS = {
    "ctrl": ("ctrl", "control", "ctl"),
    "alt": ("alt", "option", "opt"),
    "shift": ("shift",),
    "win": ("win", "windows", "super", "cmd", "command", "meta", "hyper"),
}
_MODIFIER_KEYS = frozenset(f"{name}{side}" for name in _MODIFIERS for side in ("", "left", "right"))
# X11's own names of signs (X11/keysymdef.h), in the order of `string.punctuation`.
_KEYSYMS = (
    "exclam quotedbl numbersign dollar percent ampersand apostrophe parenleft parenright asterisk plus comma minus "
    "period slash colon semicolon less equal greater question at bracketleft backslash bracketright asciicircum "
    "underscore grave braceleft bar braceright asciitilde"
).split()
_SIGNS = dict(zip(string.punctuation, _KEYSYMS, strict=True))
_ALIASES = {
    **{name: sign for sign, name in _SIGNS.items()},
    **{name: key for key, names in _MODIFIERS.items() for name in names},
    # Control_L, lctrl, leftctrl
    **{
        form: f"{key}{side}"
        for key, names in _MODIFIERS.items()
        for name in names
        for side in ("left", "right")
        for form in (f"{name}{side[0]}", f"{name}{side}", f"{side[0]}{name}", f"{side}{name}")
    },
    **{f"kp{digit}": f"num{digit}" for digit in string.digits},
    "altgr": "altright",
    "return": "enter",
    "escape": "esc",
    "del": "delete",
    "ins": "insert",
    "bksp": "backspace",
    "spacebar": "space",
    "pgup": "pageup",
    "prior": "pageup",
    "pgdn": "pagedown",
    "pgdown": "pagedown",
    "next": "pagedown",
    "arrowleft": "left",
    "arrowright": "right",
    "arrowup": "up",
    "arrowdown": "down",
    "leftarrow": "left",
    "rightarrow": "right",
    "uparrow": "up",
    "downarrow": "down",
    "caps": "capslock",
    "menu": "apps",
    "break": "pause",
    "prtsc": "printscreen",
    "prtscr": "printscreen",
    "prntscrn": "printscreen",
    "print": "printscreen",
    "dot": ".",
    "dash": "-",
    "hyphen": "-",
    "equals": "=",
    "backtick": "`",
    "tilde": "~",
}


MAX_KEYS_CHARS = 1000
"""Longest text that names keys: more than a keyboard has. Reading it costs over a microsecond a character."""


def parse_keys(text: str) -> tuple[str, ...]:
    """Split `ctrl c`, `ctrl+c`, `ctrl + c` or `Ctrl-C` into canonical key names.

    Letters name keys, so case is ignored: `Ctrl+C` does not press Shift. Two words are one key unless both are keys:
    `page down`, but `alt left`. No other notation is read as keys: `C-x`, `ctrl & c`.

    Raises:
        ActionParseError: there is no key, one does not exist, another sign joins them, or the text is far too long.
    """
    if len(text) > MAX_KEYS_CHARS:
        raise ActionParseError(f"hotkey must name keys in at most {MAX_KEYS_CHARS} characters, got {len(text)}")
    keys: list[str] = []
    words = text.split()[::-1]
    while words:
        word = words.pop()
        if keys and word == "+" and words:
            continue  # it joins the keys beside it
        if word in _SIGNS and words and words[-1] not in _SIGNS and not _MODIFIER_KEYS.isdisjoint(keys):
            raise ActionParseError(f"hotkey must join its keys by a space or +, got {text[:40]!r}")
        named = _split_word(word)
        pair = _split_word(word + words[-1]) if words else None
        if pair is not None and (named is None or _split_word(words[-1]) is None):
            named = pair
            words.pop()
        if named is None:
            hint = did_you_mean(word.lower(), _NAMED_KEYS)
            raise ActionParseError(
                f"hotkey must name keys as pyautogui does (ctrl, enter, a, f5), got {word[:40]!r}{hint}"
            )
        keys.extend(named)
    if not keys:
        raise ActionParseError("hotkey must name at least one key, got none")
    return tuple(keys)


def format_keys(keys: Sequence[str]) -> str:
    """Write keys so that `parse_keys` reads them back. A sign between two keys gets its name, or it would join them."""
    last = len(keys) - 1
    return " ".join(_SIGNS.get(key, key) if 0 < index < last else key for index, key in enumerate(keys))


def _canonical(word: str) -> str | None:
    """Return the canonical name of one key, or None if the word does not name a key."""
    name = word.lower()
    if name in KEY_NAMES:
        return name
    name = name.replace("_", "")
    for known in (name, name.removeprefix("kp")):
        known = _ALIASES.get(known, known)
        if known in KEY_NAMES:
            return known
    return None


def _split_word(word: str) -> list[str] | None:
    """Split a word such as `ctrl+shift+t` at its joining sign. A doubled sign at the end is that key: `ctrl++`.

    Return None if a part does not name a key.
    """
    whole = _canonical(word)
    if whole is not None:
        return [whole]
    for sign in "+-":
        if sign not in word[1:]:
            continue
        parts = word.split(sign)
        if sign == "-" and len(parts[0]) == 1:
            continue  # Emacs's `C-x` would press C
        if parts[-2:] == ["", ""]:
            parts = [*parts[:-2], sign]
        keys = [_canonical(part) for part in parts]
        if None not in keys:
            return [key for key in keys if key is not None]
    whole = _canonical(re.sub(r"(?<=\w)-(?=\w)", "", word))  # page-down
    return None if whole is None else [whole]
