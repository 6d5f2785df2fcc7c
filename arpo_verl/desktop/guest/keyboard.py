"""The keyboard map: every character on a key that pyautogui's idea of Shift reaches.

pyautogui presses Shift for `<` as on an American keyboard, and presses the key that `Display.keysym_to_keycode` gives.
The default map has a 102nd key that bears `<` unshifted and `>` shifted, and python-xlib prefers it, so `<` was typed
as `>`. Freeing that key leaves `<` where Shift and comma give it, for pyautogui, xdotool and any other program.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from Xlib import X

if TYPE_CHECKING:
    from Xlib.display import Display

KEY_102 = 94
REUSE_PAUSE_S = 0.2


def mend(display: Display) -> None:
    """Take the 102nd key's symbols away; as a spare key it can bear any other character later."""
    symbols = len(display.get_keyboard_mapping(KEY_102, 1)[0])
    display.change_keyboard_mapping(KEY_102, [[X.NoSymbol] * symbols])
    display.sync()


def keysym(character: str) -> int:
    """The X key symbol of a printable character.

    Raises:
        ValueError: it is not printable, so no key gives it.
    """
    if not character.isprintable():
        raise ValueError(f"cannot type {character!r}: it is not a printable character")
    code = ord(character)
    return code if code < 0x100 else 0x01000000 | code


class SpareKeys:
    """Keys that bear nothing a program needs, given to the characters that are on no key.

    There are about a hundred: those without a symbol and the multimedia keys. When all are taken, the one given out
    longest ago is given to another character.
    """

    def __init__(self, display: Display, codes: dict[str, int | None]):
        """`codes`: pyautogui's key codes by key name; kept up to date."""
        self._display = display
        self._codes = codes
        self._given: list[int] = []

    def bind(self, character: str) -> None:
        """Have a key that gives `character`, with Shift and without.

        Raises:
            ValueError: no key can give it.
        """
        symbol = keysym(character)
        first = self._display.display.info.min_keycode
        rows = self._display.get_keyboard_mapping(first, self._display.display.info.max_keycode - first + 1)
        table = dict(enumerate(rows, start=first))
        code = next((code for code, row in table.items() if row[0] == symbol and row[1] in (symbol, X.NoSymbol)), None)
        if code is None:
            code = self._take(table)
            self._display.change_keyboard_mapping(code, [[symbol] * len(rows[0])])
            self._display.sync()
        self._codes[character] = code

    def _take(self, table: Mapping[int, Sequence[int]]) -> int:
        code = next((code for code, row in table.items() if all(map(_is_spare, row))), None)
        if code is None:
            # Whoever reads late of the key's last change must not see the next: a program asks for the map as it is.
            time.sleep(REUSE_PAUSE_S)
            code = self._given.pop(0) if self._given else next(c for c, row in table.items() if len(set(row)) == 1)
        self._given.append(code)
        for character in [character for character, known in self._codes.items() if known == code]:
            del self._codes[character]
        return code


def _is_spare(symbol: int) -> bool:
    return symbol == X.NoSymbol or 0x10080000 <= symbol <= 0x1008FFFF  # the range of XF86 multimedia keys


def teach(module: Any) -> None:
    """Let pyautogui's X11 `module` type any printable character, and refuse the rest aloud.

    By itself it drops, without a word, what is not on an American keyboard.
    """
    for key, code in module.keyboardMapping.items():
        if code == 0:  # not on this keyboard, as F13: X refuses it, and Xlib fails at the answer
            module.keyboardMapping[key] = None
    spare = SpareKeys(module._display, module.keyboardMapping)
    for name in ("_keyDown", "_keyUp"):
        setattr(module, name, _bound_first(spare, module.keyboardMapping, getattr(module, name)))


def _bound_first(spare: SpareKeys, codes: dict[str, int | None], press: Any) -> Any:
    def press_bound_key(key: Any) -> None:
        if isinstance(key, str) and len(key) == 1 and codes.get(key) is None:
            spare.bind(key)
        press(key)

    return press_bound_key
