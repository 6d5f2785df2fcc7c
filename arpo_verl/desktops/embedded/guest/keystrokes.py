"""Type any text exactly, by key events at an X server, with any key map and without the clipboard.

The embedded desktop imports this file. For other guests an action's code contains it (`agent/actions/typing.py`). So it
needs only python-xlib, which pyautogui needs too, and nothing of this package.

A character that no key has is put on a spare key. A program looks up a key in the map at the time when it reads the
event. So a spare key gets another character only after the program with the keyboard has read all earlier text.
"""

import select
import time
from collections.abc import Iterable
from typing import Any

from Xlib import X, Xatom
from Xlib.error import CatchError, XError
from Xlib.ext.xtest import fake_input
from Xlib.protocol.event import ClientMessage

AT_ONCE = 32
"""Characters between two round trips. They fit into one packet, so no key stays down while this process is idle."""
READ_TIMEOUT_S = 20.0
"""How long a program may take to read the text."""
LOOKS, LOOK_S = 5, 0.01
"""A program that we cannot ask has read everything if so many looks in a row, so far apart, find it asleep."""

CONTROL = {"\b": 0xFF08, "\t": 0xFF09, "\n": 0xFF0D, "\r": 0xFF0D}
SHIFT, CAPS_LOCK = 0xFFE1, 0xFFE5


def keysym(character: str) -> int:
    """Return the X key symbol of a character.

    Raises:
        ValueError: no key gives it.
    """
    code = ord(character)
    if character in CONTROL:
        return CONTROL[character]
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000:
        raise ValueError(f"cannot type {character!a}: no key gives it")
    return code if code < 0x100 else 0x01000000 | code


def type_text(display: Any, text: str) -> None:
    """Type `text`; a newline presses Enter, and Caps Lock changes nothing.

    Raises:
        ValueError: no key can give one of the characters; nothing was typed.
        RuntimeError: the X server did not take the key map, or a program does not read the text.
    """
    symbols = [keysym(character) for character in text]
    keys = Keys(display)
    caps_lock = [CAPS_LOCK] if keys.locked else []
    keys.press(caps_lock)
    try:
        done = 0
        while done < len(symbols):
            count = keys.provide(symbols[done:])
            keys.press(symbols[done : done + count])
            done += count
    finally:
        keys.press(caps_lock)
    if not keys.have(symbols):
        await_reader(display)


class Keys:
    """An X server's keys, by the symbol that they give."""

    def __init__(self, display: Any):
        self._display = display
        self._read()

    def _read(self) -> None:
        first = self._display.display.info.min_keycode
        rows = self._display.get_keyboard_mapping(first, self._display.display.info.max_keycode - first + 1)
        state = self._display.screen().root.query_pointer().mask
        group = state >> 13 & 3
        if group > 1:
            raise RuntimeError("the keyboard is switched to a third layout, which has no place in the key map")
        self.locked = bool(state & X.LockMask)
        self._width = len(rows[0])
        self._own: dict[int, tuple[int, int]] = {}
        self._given: dict[int, int] = {}
        self._free: list[int] = []
        for code, row in enumerate(rows, first):
            if not any(row):
                self._free.append(code)
            elif row[0] == row[1] and (0x20 < row[0] < 0x100 or row[0] >= 0x01000000):  # only our spare keys are so
                self._given[row[0]] = code
            else:
                for shifted, symbol in enumerate(row[2 * group :][:2]):
                    self._own.setdefault(symbol, (code, shifted))

    def have(self, symbols: list[int]) -> bool:
        """Return whether the keyboard's own keys give all of them."""
        return all(symbol in self._own for symbol in symbols)

    def provide(self, symbols: list[int]) -> int:
        """Put as many of the first symbols on keys as fit at once; return how many.

        Raises:
            RuntimeError: the keyboard has no spare key, or a program does not read the text.
        """
        wanted: dict[int, None] = {}
        count = 0
        for symbol in symbols:
            if symbol not in self._own and symbol not in wanted:
                if len(wanted) == len(self._free) + len(self._given):
                    break
                wanted[symbol] = None
            count += 1
        if not count:
            raise RuntimeError("the keyboard has no spare key")
        new = [symbol for symbol in wanted if symbol not in self._given]
        if len(new) > len(self._free):
            if not await_reader(self._display):
                raise RuntimeError("the program that has the keyboard does not read what is typed")
            self._free += [code for symbol, code in self._given.items() if symbol not in wanted]
        if new:
            self._give(new)
        return count

    def code(self, symbol: int) -> int:
        """Return the code of the key that gives a symbol; call `provide` for it first."""
        return self._own[symbol][0] if symbol in self._own else self._given[symbol]

    def press(self, symbols: list[int]) -> None:
        """Press the keys that give these symbols, one after the other."""
        for start in range(0, len(symbols), AT_ONCE):
            for symbol in symbols[start : start + AT_ONCE]:
                shifted = symbol in self._own and self._own[symbol][1]
                held = [self.code(SHIFT)] * shifted + [self.code(symbol)]
                for code in held:
                    fake_input(self._display, X.KeyPress, code)
                for code in reversed(held):
                    fake_input(self._display, X.KeyRelease, code)
            self._display.sync()

    def _give(self, symbols: list[int]) -> None:
        codes = [code for run in sorted(_runs(self._free), key=len, reverse=True) for code in run]
        change_map(self._display, {code: [symbol] * self._width for code, symbol in zip(codes, symbols, strict=False)})
        self._read()
        if any(symbol not in self._given for symbol in symbols):
            raise RuntimeError("the X server did not take the key map")
        await_reader(self._display)


def change_map(display: Any, rows: dict[int, list[int]]) -> None:
    """Give keys other symbols, neighbours in one request: after each, every program reads the whole map again."""
    for run in _runs(rows):
        display.change_keyboard_mapping(run[0], [rows[code] for code in run])
    display.sync()


def _runs(codes: Iterable[int]) -> list[list[int]]:
    """Return codes in groups of neighbours."""
    runs: list[list[int]] = []
    for code in sorted(codes):
        if not runs or code != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(code)
    return runs


def await_reader(display: Any) -> bool:
    """Wait until the program with the keyboard has read all events so far; return False if it takes too long."""
    name = display.intern_atom
    try:
        window = display.get_input_focus().focus
        while hasattr(window, "query_tree"):  # otherwise it is no window: nobody reads, or it is the root's parent
            protocols = window.get_full_property(name("WM_PROTOCOLS"), Xatom.ATOM)
            if protocols and name("_NET_WM_PING") in protocols.value:
                return _answers(display, window)
            if protocols:
                return _sleeps(display, window.get_full_property(name("_NET_WM_PID"), Xatom.CARDINAL))
            window = window.query_tree().parent
    except XError:  # the window is gone
        pass
    return True


def _answers(display: Any, window: Any) -> bool:
    """Return whether a window answers a ping; its program does so in the order of its events."""
    protocols, ping = display.intern_atom("WM_PROTOCOLS"), display.intern_atom("_NET_WM_PING")
    root = display.screen().root
    number = time.monotonic_ns() // 1000 & 0x7FFFFFFF
    question = ClientMessage(window=window, client_type=protocols, data=(32, [ping, number, window.id, 0, 0]))
    root.change_attributes(event_mask=X.SubstructureNotifyMask)  # where answers go
    try:
        window.send_event(question, onerror=CatchError())
        deadline = time.monotonic() + READ_TIMEOUT_S
        while time.monotonic() < deadline:
            while display.pending_events():
                event = display.next_event()
                if event.type == X.ClientMessage and list(event.data[1][:2]) == [ping, number]:
                    return True
            window.get_geometry()  # raises if the text has closed the window
            select.select([display.fileno()], [], [], 0.1)
        return False
    finally:
        root.change_attributes(event_mask=X.NoEventMask)
        display.sync()


def _sleeps(display: Any, pid: Any) -> bool:
    """Return whether a program falls asleep. While it waits for the X server, round trips to that wake it."""
    looks: list[list[str]] = []
    deadline = time.monotonic() + READ_TIMEOUT_S
    while len(looks) < LOOKS and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        display.sync()
        try:
            with open(f"/proc/{pid.value[0]}/status") as file:
                look = [line for line in file if line.startswith(("State:\tS", "voluntary_ctxt_switches"))]
        except (AttributeError, OSError):  # it does not say which process it is
            look = ["", ""]
        looks = [*looks, look] if len(look) == 2 and looks[-1:] in ([], [look]) else []
    return len(looks) == LOOKS
