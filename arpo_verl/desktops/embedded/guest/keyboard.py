"""Correct a desktop's keyboard map, and make pyautogui type any text on it.

pyautogui presses Shift for `<` as on an American keyboard, and presses the key that `Display.keysym_to_keycode` gives.
The default map has a 102nd key with `<`, and `>` with Shift. python-xlib prefers that key, so pyautogui typed `>` for
`<`. Without that key, `<` is on Shift and comma, for pyautogui, xdotool and any other program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from Xlib import X

from .keystrokes import Keys, change_map, keysym, type_text

if TYPE_CHECKING:
    from Xlib.display import Display

KEY_102 = 94
BROWSER_KEYS = frozenset({158, 164, 166, 167, 180, 181, 225})
"""WWW, favourites, back, forward, home page, reload, search: browsers may obey these keys, whatever their symbol is."""


def mend(display: Display) -> None:
    """Turn the 102nd key and the multimedia keys, about a hundred, into spare keys for characters that no key has."""
    first = display.display.info.min_keycode
    rows = display.get_keyboard_mapping(first, display.display.info.max_keycode - first + 1)
    spare = [code for code, row in enumerate(rows, first) if code == KEY_102 or all(map(_is_multimedia, row))]
    spare = [code for code in spare if code not in BROWSER_KEYS]
    change_map(display, {code: [X.NoSymbol] * len(rows[0]) for code in spare})


def _is_multimedia(symbol: int) -> bool:
    return symbol == X.NoSymbol or 0x10080000 <= symbol <= 0x1008FFFF


def teach(pyautogui: Any) -> None:
    """Let pyautogui type any text, and raise for what no key can type.

    By itself it silently drops what is not on an American keyboard.
    """
    module = pyautogui.platformModule
    for key, code in module.keyboardMapping.items():
        if code == 0:  # not on this keyboard, such as F13: X refuses it, and Xlib fails at that answer
            module.keyboardMapping[key] = None
    for name in ("_keyDown", "_keyUp"):
        setattr(module, name, _bound_first(module, getattr(module, name)))
    pyautogui.write = pyautogui.typewrite = _typing(module._display, pyautogui.write)


def _bound_first(module: Any, press: Any) -> Any:
    def press_bound_key(key: Any) -> None:
        if isinstance(key, str) and len(key) == 1 and (not key.isascii() or module.keyboardMapping.get(key) is None):
            keys = Keys(module._display)
            keys.provide([keysym(key)])
            module.keyboardMapping[key] = keys.code(keysym(key))
        press(key)

    return press_bound_key


def _typing(display: Any, write: Any) -> Any:
    """Return a `write` for pyautogui that uses `type_text` if no pauses are requested."""

    def type_or_write(message: Any, interval: float = 0.0, *args: Any, **options: Any) -> None:
        if isinstance(message, str) and not interval:
            type_text(display, message)
        else:
            write(message, interval, *args, **options)

    return type_or_write
