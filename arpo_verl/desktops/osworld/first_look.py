"""Keep machines awake, so that an episode begins on a screen that shows a desktop.

A machine that waits for its episode is idle, and Ubuntu's session blanks and locks an idle screen. We make its session
inhibit that. We change no settings of the user's, since tasks ask for settings and evaluate them.
"""

from __future__ import annotations

from http import HTTPStatus

from arpo_verl.desktops.osworld.guest_http import ask
from arpo_verl.lib.images import SENT, read_image

TIMEOUT_S = 60.0
"""The time-out of a command that takes 0.2 s, in a machine that has just booted."""
BLACK_S = 5.0
"""How long a screen may stay black after a set-up: films begin black, and screens wake slowly."""
_DARK = 16
"""The brightest level, of 255, that counts as black."""
_LIT = [255 * (level > _DARK) for level in range(256)]
_POINTER = 64
"""The side, in pixels, of a square that may be brighter: the mouse pointer."""

# OSWorld's guest server is a service outside of the session, so it lacks these variables.
_SESSION = """exec 2> /dev/null < /dev/null
export DISPLAY="${DISPLAY:-:0}" XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"
export DBUS_SESSION_BUS_ADDRESS="${DBUS_SESSION_BUS_ADDRESS:-unix:path=$XDG_RUNTIME_DIR/bus}"
screen() {
    gdbus call --session --timeout 5 --dest org.gnome.ScreenSaver --object-path /org/gnome/ScreenSaver \\
        --method "org.gnome.ScreenSaver.$@"
}
"""
_ASK = f"{_SESSION}screen GetActive\n"
_WAKE = f"""{_SESSION}# The kernel keeps 15 letters of a name.
pgrep -x gnome-session-i > /dev/null || setsid gnome-session-inhibit --inhibit idle --inhibit-only > /dev/null &
xset s off -dpms > /dev/null
case "$(screen GetActive)" in *true*) screen SetActive false > /dev/null ;; esac
screen GetActive
"""


def keep_awake(http_server: str) -> bool:
    """Unlock a guest's session and keep it awake; return whether its screen is still locked or blanked.

    Raises:
        requests.RequestException: the guest does not answer.
    """
    return _says_true(http_server, _WAKE)


def is_locked(http_server: str) -> bool:
    """Return whether a guest's session says that its screen is locked or blanked; False if it cannot say.

    Raises:
        requests.RequestException: the guest does not answer.
    """
    return _says_true(http_server, _ASK)


def is_black(screenshot: bytes) -> bool:
    """Return whether a screen is black, apart from a mouse pointer.

    Raises:
        ImageError: it is no picture.
    """
    lit = read_image(screenshot, SENT).convert("L").point(_LIT).getbbox()
    return lit is None or (lit[2] - lit[0] <= _POINTER and lit[3] - lit[1] <= _POINTER)


def _says_true(http_server: str, line: str) -> bool:
    asked = {"command": line, "shell": True}
    answer = ask("POST", f"{http_server}/setup/execute", json=asked, timeout=TIMEOUT_S)
    return answer.status_code == HTTPStatus.OK and "true" in str(answer.json().get("output"))
