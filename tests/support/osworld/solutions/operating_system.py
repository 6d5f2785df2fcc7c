"""OSWorld's domain `os`: work in the terminal that Ctrl+Alt+T opens."""

from __future__ import annotations

from support.osworld.harness import Operator, Solution


def open_terminal(operator: Operator) -> None:
    """A terminal by its hotkey, with the shell's prompt in it."""
    operator.press("ctrl", "alt", "t")
    operator.await_window("Terminal")
    operator.await_still()


def _by_command(line: str, check: str, expected: str) -> Solution:
    """Type `line` into a terminal; it is done once `check` prints `expected`."""

    def solve(operator: Operator) -> None:
        open_terminal(operator)
        operator.type(f"{line}\n")
        operator.await_output(check, expected)

    return solve


SOLUTIONS: dict[str, Solution] = {
    "a4d98375-215b-4a4d-aee9-3d4370fccc41": _by_command(
        "gsettings set org.gnome.desktop.screensaver lock-enabled true",
        "gsettings get org.gnome.desktop.screensaver lock-enabled",
        "true",
    ),
    "bedcedc4-4d72-425e-ad62-21960b11fe0d": _by_command(
        "gsettings set org.gnome.settings-daemon.plugins.power idle-dim false",
        "gsettings get org.gnome.settings-daemon.plugins.power idle-dim",
        "false",
    ),
    "e0df059f-28a6-4169-924f-b9623e7184cc": _by_command(
        "mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2", "ls ~/Desktop", "todo_list_Jan_2"
    ),
    "ec4e3f68-9ea4-4c18-a5c9-69f89d1178b3": _by_command(
        "gsettings set org.gnome.shell favorite-apps \"['thunderbird.desktop', 'google-chrome.desktop']\"",
        "gsettings get org.gnome.shell favorite-apps",
        "['thunderbird.desktop', 'google-chrome.desktop']",
    ),
    "28cc3b7e-b194-4bc9-8353-d04c0f4d56d2": _by_command(
        "pactl set-sink-volume @DEFAULT_SINK@ 100%", "pactl get-sink-volume @DEFAULT_SINK@", "100%"
    ),
}
