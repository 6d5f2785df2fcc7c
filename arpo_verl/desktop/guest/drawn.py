"""Whether a window shows and is done drawing, for a task's set-up: as code for a warm interpreter.

    "verification": {"command_success": "python -c 'from arpo_guest.drawn import require; require(\"Name\", 4000)'"}

A dozen processes of a shell line (`xdotool`, `xwd | gzip | cksum`, twice) said the same at eight times the cost.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Sequence
from typing import Any

from Xlib import X
from Xlib.error import XError

from .framebuffer import BYTES_A_PIXEL, Framebuffer

PAUSE_S = 0.05
INTERVAL_S = 0.02
PATIENCE_S = 2.0
"""A program starts within it as a rule; who asks asks again, and each time costs ten looks from here."""


Area = tuple[int, int, int, int]


def require(title: str, more_than: int, texts: Sequence[Area] = ()) -> None:
    """Wait for the window of this title to have the focus and to look the same twice; exit with 1 if it does not.

    Args:
        more_than: bytes of its picture with its frame, compressed: an empty window has fewer.
        texts: left, top, right and bottom of parts of the screen that must show more than one colour.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not (is_drawn := _is_drawn(title, more_than, texts)) and time.monotonic() < deadline:
        time.sleep(INTERVAL_S)
    sys.exit(not is_drawn)


def _is_drawn(title: str, more_than: int, texts: Sequence[Area]) -> bool:
    # The connection of the interpreter's own pyautogui: another one would cost more than all the rest.
    from pyautogui import _pyautogui_x11

    try:
        area = _active_frame(_pyautogui_x11._display, title)
    except XError:  # it closed meanwhile
        return False
    if area is None:
        return False
    screen = Framebuffer()
    first = screen.part(*area)
    time.sleep(PAUSE_S)
    is_still = first == screen.part(*area) and len(zlib.compress(first, 1)) > more_than
    return is_still and not any(_is_plain(screen.part(*text)) for text in texts)


def _is_plain(pixels: bytes) -> bool:
    """Whether all have the first one's colour."""
    return pixels == pixels[:BYTES_A_PIXEL] * (len(pixels) // BYTES_A_PIXEL)


def _active_frame(display: Any, title: str) -> Area | None:
    """Left, top, right and bottom of the active window with its frame; None where it has another title."""
    root = display.screen().root
    active = root.get_full_property(display.intern_atom("_NET_ACTIVE_WINDOW"), X.AnyPropertyType)
    if active is None or not active.value or not active.value[0]:
        return None
    window = display.create_resource_object("window", active.value[0])
    name = window.get_full_text_property(display.intern_atom("_NET_WM_NAME")) or window.get_wm_name()
    if name != title:
        return None
    while (parent := window.query_tree().parent) != root:
        window = parent
    shape = window.get_geometry()
    return shape.x, shape.y, shape.x + shape.width, shape.y + shape.height
