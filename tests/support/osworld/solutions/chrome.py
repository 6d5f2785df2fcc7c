"""OSWorld's domain `chrome`: the browser's own pages, typed into the address bar."""

from __future__ import annotations

from support.osworld.harness import Operator, Solution

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


def passwords_page(operator: Operator) -> None:
    """Going there is all."""
    visit(operator, "chrome://password-manager/passwords", "Passwords")


def plain_startup(operator: Operator) -> None:
    """The first of three radio buttons; a page that cannot be reached is open."""
    operator.await_window("Chromium")
    operator.await_still()
    operator.press("ctrl", "l")
    operator.type("chrome://settings/onStartup\n")
    operator.await_output(f"{TREE} | grep -o 'Open a specific page'", "Open a specific page")
    operator.await_still()
    operator.click(642, 236)
    operator.await_output(f"cat {PROFILE}/Preferences", '"restore_on_startup":5')


SOLUTIONS: dict[str, Solution] = {
    "12086550-11c0-466b-b367-1d9e75b3910e": passwords_page,
    "2ad9387a-65d8-4e33-ad5b-7580065a27ca": add_bookmark_folder,
    "2ae9ba84-3a0d-4d4c-8338-3a1478dc5fe3": rename_profile,
    "3299584d-8f11-4457-bf4c-ce98f7600250": plain_startup,
    "af630914-714e-4a24-a7bb-f9af687d3b91": largest_font,
}
