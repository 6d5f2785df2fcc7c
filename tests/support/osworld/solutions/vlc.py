"""OSWorld's domain `vlc`: settings in the Preferences window. Positions are those of VLC 3.0 on 1920x1080."""

from __future__ import annotations

from support.osworld.harness import Operator, Solution

VLCRC = "~/.config/vlc/vlcrc"
TREE = (20, 100, 780, 990)
SEARCH = (20, 36, 600, 58)
EMPTY_WINDOW = "600x420"
PAGE = (820, 60, 1800, 1000)


def open_preferences(operator: Operator) -> None:
    """The window that Ctrl+P opens, as large as the screen."""
    operator.await_window("VLC media player")
    operator.await_still()
    operator.press("ctrl", "p")
    operator.await_window("Simple Preferences")
    operator.press("winleft", "up")
    operator.await_change()


def open_qt_settings(operator: Operator) -> None:
    """All settings of the Qt interface, found by the search for a word in them."""
    open_preferences(operator)
    operator.click(91, 1054)  # Show settings: All
    operator.await_window("Advanced Preferences")
    operator.await_change(TREE)
    operator.click(700, 47)
    operator.await_change(SEARCH)
    operator.type("cone")
    operator.await_change(TREE)
    operator.click(88, 159)  # Qt
    operator.await_change(PAGE)


def save(operator: Operator, setting: str) -> None:
    """Save; it is done once the file says so."""
    operator.press("alt", "s")
    operator.await_output(f"grep '^{setting}' {VLCRC}", setting)
    operator.await_no_window("Preferences")


def hide_cone(operator: Operator) -> None:
    open_qt_settings(operator)
    operator.click(835, 666)  # Display background cone or art
    save(operator, "qt-bgcone=0")


def raise_max_volume(operator: Operator) -> None:
    open_qt_settings(operator)
    operator.click(1830, 748, count=2)  # Maximum volume displayed
    operator.press("ctrl", "a")
    operator.type("200\t")
    save(operator, "qt-max-volume=200")


def start_in_minimal_view(operator: Operator) -> None:
    open_preferences(operator)
    operator.click(178, 300)  # Start in minimal view mode
    save(operator, "qt-minimal-view=1")


def fill_screen(operator: Operator) -> None:
    geometry = "xdotool getactivewindow getwindowgeometry"
    operator.await_window(".mp4 - VLC media player")
    operator.until("the film", lambda: EMPTY_WINDOW not in operator.sh(geometry))
    operator.press("f")
    operator.await_output(geometry, "1920x1080")


SOLUTIONS: dict[str, Solution] = {
    "215dfd39-f493-4bc3-a027-8a97d72c61bf": hide_cone,
    "9195653c-f4aa-453d-aa95-787f6ccfaae9": raise_max_volume,
    "a5bbbcd5-b398-4c91-83d4-55e1e31bbb81": start_in_minimal_view,
}

WITH_DOCUMENTS_OF_OUR_OWN: dict[str, Solution] = {
    "vlc/8d9fd4e2-6fdb-46b0-b9b9-02f06495c62f": fill_screen,
}
"""Tasks that download a film, on one of `documents`."""
