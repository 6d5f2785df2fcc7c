"""Type text on every kind of guest by key events, so that the clipboard stays as it is.

Each function takes a text whose lines end in a newline and returns Python statements, see `pyautogui.py: to_code`.
"""

from __future__ import annotations

import ast
import functools
import itertools
import unicodedata
from importlib.resources import files

from arpo_verl.errors import ActionParseError

PART_CHARS = 2000
"""Most characters that one command of the guest types. OSWorld's client waits 90 s for a command
(`execute_python_command` in desktop_env/controllers/python.py). docs/benchmark-fidelity.md has the speed of guests."""


def check_text(text: str, where: str = "a keyboard") -> None:
    """Refuse what no key types: control characters, and half of a surrogate pair, which JSON can spell.

    Raises:
        ActionParseError: `where` cannot type one of the characters.
    """
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\r\t":
            raise ActionParseError(f"typed text must be characters that {where} can type, got {ascii(character)}")


def parts(text: str) -> list[str]:
    """Return the text in parts to type one after the other, at least one, with only newlines between lines."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return [text[start : start + PART_CHARS] for start in range(0, len(text), PART_CHARS)] or [""]


def by_taught_pyautogui(text: str) -> str:
    """Type on the embedded desktop, whose pyautogui types any text (`desktops/embedded/guest/keyboard.py: teach`)."""
    return f"pyautogui.write({literal(text)})"


def by_x_keys(text: str) -> str:
    """Type on any other guest with an X server, as on the embedded desktop; the code contains all that it needs."""
    return f"{_keystrokes()}\ntype_text(pyautogui.platformModule._display, {literal(text)})"


def by_windows_keys(text: str) -> str:
    """Type on Windows: pyautogui types what it knows, and `SendInput`, which takes UTF-16, the rest."""
    statements = []
    for known, part in itertools.groupby(text, str.isascii):
        statements.append(f"{'pyautogui.write' if known else 'send_units'}({literal(''.join(part))})")
    return "\n".join([*([] if text.isascii() else [_SEND_UNITS]), *statements])


def literal(text: str) -> str:
    """Return an ASCII Python literal that the client's rewriting of `pyautogui.` calls never matches."""
    # numpy's strings and those of an enumeration would be written differently.
    return ascii(str.__str__(text)).replace("pyautogui.", "pyautogui\\x2e")


@functools.cache
def _keystrokes() -> str:
    """Return the code of `desktops/embedded/guest/keystrokes.py` without its docstrings."""
    tree = ast.parse((files("arpo_verl.desktops.embedded.guest") / "keystrokes.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [one for one in node.body if not _is_string(one)]
    return ast.unparse(tree)


def _is_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


_SEND_UNITS = """import ctypes
class Key(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("unit", ctypes.c_uint16), ("flags", ctypes.c_uint32),
                ("time", ctypes.c_uint32), ("extra", ctypes.c_size_t), ("rest", ctypes.c_uint32 * 2)]
class Input(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint32), ("key", Key)]
def send_units(text):
    data = text.encode("utf-16-le")
    units = [int.from_bytes(data[at:at + 2], "little") for at in range(0, len(data), 2)]
    events = [Input(1, Key(0, unit, flags)) for unit in units for flags in (4, 6)]
    taken = ctypes.windll.user32.SendInput(len(events), (Input * len(events))(*events), ctypes.sizeof(Input))
    if taken != len(events):
        raise RuntimeError(f"Windows took {taken} of {len(events)} key events")"""
