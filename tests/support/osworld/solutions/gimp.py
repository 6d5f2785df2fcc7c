"""OSWorld's domain `gimp`. Positions are those of GIMP 2.10 on 1920x1080."""

from __future__ import annotations

from support.osworld.harness import Operator, Solution

TITLE = "GNU Image Manipulation Program"
FOLDER = "~/.config/GIMP/2.10"
HEADING = (260, 35, 1800, 90)
"""Of a page of the preferences."""


def await_gimp(operator: Operator) -> None:
    """GIMP's window, as large as the screen."""
    operator.await_window(TITLE)
    operator.await_still()
    operator.press("winleft", "up")
    operator.await_change()


def quit_gimp(operator: Operator) -> None:
    """Quit, which writes the settings. The evaluator would too, but gives GIMP no more than half a second."""
    operator.press("ctrl", "q")
    operator.await_output("pgrep -x 'gimp|gimp-2.10' || echo ended", "ended")


def choose_light_theme(operator: Operator) -> None:
    await_gimp(operator)
    operator.press("alt", "e")  # Edit
    operator.await_change()
    operator.click(104, 609)  # Preferences
    operator.await_window("Preferences")
    operator.await_still()
    operator.press("winleft", "up")
    operator.await_change()
    operator.click(95, 244)  # Theme
    operator.await_change(HEADING)
    operator.click(290, 212)  # Light
    operator.await_change(HEADING)  # it is shown at once
    operator.click(1864, 1054)  # OK
    operator.await_no_window("Preferences")
    operator.await_output(f"grep theme {FOLDER}/gimprc", '(theme "Light")')
    operator.await_window(TITLE)
    quit_gimp(operator)


def hide_docks(operator: Operator) -> None:
    await_gimp(operator)
    operator.click(960, 500)  # the picture's place: from there, Tab is not taken for a step to the next field
    operator.await_still()
    operator.press("tab")
    operator.await_change()
    quit_gimp(operator)
    operator.await_output(f"grep hide-docks {FOLDER}/sessionrc", "yes")


def export(operator: Operator) -> None:
    operator.await_window("GIMP")
    operator.await_still()
    operator.press("ctrl", "shift", "e")
    operator.await_window("Export Image")
    operator.await_still()
    operator.press("ctrl", "a")
    operator.type("/home/user/Desktop/export.jpg\n")
    operator.await_window("Export Image as JPEG")
    operator.await_still()
    operator.press("enter")
    operator.await_no_window("Export Image")
    operator.await_output("ls ~/Desktop", "export.jpg")


SOLUTIONS: dict[str, Solution] = {
    "7767eef2-56a3-4cea-8c9f-48c070c7d65b": choose_light_theme,
    "d52d6308-ec58-42b7-a2c9-de80e4837b2b": hide_docks,
}

WITH_DOCUMENTS_OF_OUR_OWN: dict[str, Solution] = {
    "gimp/77b8ab4d-994f-43ac-8930-8ca087d7c4b4": export,
}
"""Tasks that download a picture, on one of `documents`."""
