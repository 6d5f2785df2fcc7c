"""A task's set-up uses this code, in a warm interpreter, to offer DejaVu to programs with the X server's own fonts.

    "command": ["python", "-c", "from arpo_guest.fonts import offer; offer()"]

The server itself has one small font, `fixed`. Afterwards it has fonts such as
`-dejavu-sans-medium-r-normal--14-*-*-*-*-*-iso8859-1`, at every size, without smooth edges.
"""

from __future__ import annotations

import os

from . import layout

FOLDER = f"{layout.RUNTIME_DIR}/fonts"
FILES = "/usr/share/fonts/truetype/dejavu"
FACES = {"sans": "DejaVuSans.ttf", "serif": "DejaVuSerif.ttf", "mono": "DejaVuSansMono.ttf"}


def offer() -> None:
    """Add DejaVu's faces to the X server, after the fonts that it has; one call is enough."""
    # Use the connection of the interpreter's own pyautogui: a new one would cost more than everything else.
    from pyautogui import _pyautogui_x11

    if os.path.exists(FOLDER):
        return
    os.makedirs(FOLDER)
    for file in FACES.values():
        os.symlink(f"{FILES}/{file}", f"{FOLDER}/{file}")
    lines = [f"{file} -dejavu-{name}-medium-r-normal--0-0-0-0-p-0-iso8859-1" for name, file in FACES.items()]
    with open(f"{FOLDER}/fonts.dir", "w") as index:
        index.write("\n".join([str(len(lines)), *lines, ""]))
    display = _pyautogui_x11._display
    display.set_font_path([*display.get_font_path(), FOLDER])
    display.sync()
