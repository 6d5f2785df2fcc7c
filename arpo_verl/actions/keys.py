"""Key names: what models write -> the names that pyautogui's X11 backend presses.

pyautogui silently ignores a key that its backend cannot map (`command` or `volumeup` on X11), so the step would count
and do nothing. Here every accepted name is one that presses a key; any other is a parse error.
"""

from __future__ import annotations

import difflib
import string

from arpo_verl.errors import ActionParseError

_NAMED_KEYS = (
    "alt altleft altright apps backspace capslock ctrl ctrlleft ctrlright delete down end enter esc help home insert "
    "left numlock pagedown pageup pause printscreen right scrolllock shift shiftleft shiftright space tab up "
    "win winleft winright num0 num1 num2 num3 num4 num5 num6 num7 num8 num9 "
    "add decimal divide multiply separator subtract"
).split() + [f"f{n}" for n in range(1, 25)]

_CHARACTER_KEYS = string.ascii_lowercase + string.digits + string.punctuation

KEY_NAMES = frozenset(_NAMED_KEYS) | frozenset(_CHARACTER_KEYS)
"""Canonical names, each of which pyautogui 0.9.54 presses on X11."""

_ALIASES = {
    "control": "ctrl",
    "ctl": "ctrl",
    "lctrl": "ctrlleft",
    "rctrl": "ctrlright",
    "opt": "alt",
    "option": "alt",
    "cmd": "win",
    "command": "win",
    "meta": "win",
    "super": "win",
    "windows": "win",
    "return": "enter",
    "escape": "esc",
    "del": "delete",
    "ins": "insert",
    "bksp": "backspace",
    "spacebar": "space",
    "pgup": "pageup",
    "pgdn": "pagedown",
    "pgdown": "pagedown",
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
    "prtsc": "printscreen",
    "prtscr": "printscreen",
    "prntscrn": "printscreen",
    "print": "printscreen",
    "plus": "+",
    "minus": "-",
    "comma": ",",
    "period": ".",
}


def parse_keys(text: str) -> tuple[str, ...]:
    """Split `ctrl c`, `ctrl+c` or `Ctrl-C` into canonical key names.

    Letters name keys, so their case is ignored: `Ctrl+C` does not press Shift.

    Raises:
        ActionParseError: no key, or one that does not exist.
    """
    keys: list[str] = []
    for word in text.split():
        whole = _canonical(word)
        keys.extend([whole] if whole is not None else _split_chord(word))
    if not keys:
        raise ActionParseError("hotkey must name at least one key, got none")
    return tuple(keys)


def _canonical(word: str) -> str | None:
    """The canonical name of one key, or None for a word that names none."""
    name = word.lower()
    if name in KEY_NAMES:
        return name
    name = name.replace("_", "").replace("-", "")
    name = _ALIASES.get(name, name)
    return name if name in KEY_NAMES else None


def _split_chord(word: str) -> list[str]:
    """Split a word such as `ctrl+shift+t` at its joining sign; a doubled sign at the end is that key: `ctrl++`."""
    for sign in "+-":
        if sign not in word[1:]:
            continue
        parts = word.split(sign)
        if parts[-1] == "" and len(parts) > 2:
            parts = [*parts[:-2], sign]
        keys = [_canonical(part) for part in parts]
        if None not in keys:
            return [key for key in keys if key is not None]
    close = difflib.get_close_matches(word.lower(), _NAMED_KEYS, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise ActionParseError(f"hotkey must name keys as pyautogui does (ctrl, enter, a, f5), got {word[:40]!r}{hint}")
