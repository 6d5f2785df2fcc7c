"""DejaVu for programs that draw with the X server's own fonts, for a task's set-up: as code for a warm interpreter.

    "command": ["python", "-c", "from arpo_guest.fonts import offer; offer()"]

The server itself has one small font, `fixed`. Afterwards it has `-dejavu-sans-medium-r-normal--14-*-*-*-*-*-iso8859-1`
and the like, at every size, without smooth edges.
"""

from __future__ import annotations

import os

from . import layout

FOLDER = f"{layout.RUNTIME_DIR}/fonts"
FILES = "/usr/share/fonts/truetype/dejavu"
FACES = {"sans": "DejaVuSans.ttf", "serif": "DejaVuSerif.ttf", "mono": "DejaVuSansMono.ttf"}


def offer() -> None:
    """Let the X server have DejaVu's faces, behind the fonts that it has; once is enough."""
    # The connection of the interpreter's own pyautogui: another one would cost more than all the rest.
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
