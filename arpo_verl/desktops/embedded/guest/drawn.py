"""A task's set-up asks here, in a warm interpreter, whether a window is visible and has finished drawing.

    "verification": {"command_success": "python -c 'from arpo_guest.drawn import require; require(\"Name\", 4000)'"}

A shell line of a dozen processes (`xdotool`, `xwd | gzip | cksum`, twice) gave the same answer at eight times the cost.
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
"""Most programs start within this time; the caller asks again, and each of its calls costs as much as ten looks."""


Area = tuple[int, int, int, int]


def require(title: str, more_than: int, texts: Sequence[Area] = ()) -> None:
    """Wait until the window with this title has the focus and looks the same twice; exit with 1 if it never does.

    Args:
        more_than: bytes that its compressed picture, with its frame, must exceed: an empty window has fewer.
        texts: left, top, right and bottom of parts of the screen that must show more than one colour.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not (is_drawn := _is_drawn(title, more_than, texts)) and time.monotonic() < deadline:
        time.sleep(INTERVAL_S)
    sys.exit(not is_drawn)


def _is_drawn(title: str, more_than: int, texts: Sequence[Area]) -> bool:
    # Use the connection of the interpreter's own pyautogui: a new one would cost more than everything else.
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
    """Return whether all pixels have the first one's colour."""
    return pixels == pixels[:BYTES_A_PIXEL] * (len(pixels) // BYTES_A_PIXEL)


def _active_frame(display: Any, title: str) -> Area | None:
    """Return left, top, right and bottom of the active window with its frame; None if it has another title."""
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
