"""OSWorld's domain `chrome`: the browser's own pages, typed into the address bar."""

from __future__ import annotations

from harness import Operator, Solution

TREE = "/usr/bin/python3 -I /opt/arpo/arpo_guest/atspi_tree.py"
"""Prints the accessible objects. For looking only."""
PROFILE = "~/.config/google-chrome/Default"


def visit(operator: Operator, page: str, shows: str) -> None:
    """Go to a page of the browser, until an object there is called `shows`."""
    operator.await_window("New Tab")
    operator.await_still()
    operator.press("ctrl", "l")
    operator.type(f"{page}\n")
    operator.await_output(f"{TREE} | grep -o 'name=\"{shows}\"'", shows)
    operator.await_still()


def add_bookmark_folder(operator: Operator) -> None:
    """The menu of the bookmarks bar has `Add folder…`."""
    operator.await_window("New Tab")
    operator.await_still()
    operator.press("ctrl", "shift", "b")
    operator.await_change((800, 500, 1100, 700))  # the page moves down
    operator.click(900, 100, button="right")
    operator.await_change((950, 130, 1180, 560))
    operator.press("f")
    operator.await_change()
    operator.press("ctrl", "a")
    operator.type("Favorites\n")
    operator.await_output(f"cat {PROFILE}/Bookmarks", '"Favorites"')


def rename_profile(operator: Operator) -> None:
    """The name is a text field; leaving it saves."""
    visit(operator, "chrome://settings/manageProfile", "Pick an avatar")
    operator.click(816, 276)
    operator.press("ctrl", "a")
    operator.type("Thomas")
    operator.press("tab")
    operator.await_output(f"cat {PROFILE}/Preferences", '"name":"Thomas"')


def largest_font(operator: Operator) -> None:
    """The size is a slider."""
    visit(operator, "chrome://settings/fonts", "Customize fonts")
    operator.click(1138, 240)
    operator.press("end")
    operator.await_output(f"cat {PROFILE}/Preferences", '"default_font_size":72')


SOLUTIONS: dict[str, Solution] = {
    "2ad9387a-65d8-4e33-ad5b-7580065a27ca": add_bookmark_folder,
    "2ae9ba84-3a0d-4d4c-8338-3a1478dc5fe3": rename_profile,
    "af630914-714e-4a24-a7bb-f9af687d3b91": largest_font,
}
