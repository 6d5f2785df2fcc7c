"""Names of paths inside the sandbox and of its processes, and the environment of its programs."""

from __future__ import annotations

import os

HOME = "/home/user"
DISPLAY = ":0"
FRAMEBUFFER_DIR = "/run/framebuffer"
FRAMEBUFFER = f"{FRAMEBUFFER_DIR}/Xvfb_screen0"
LOG_DIR = "/run/log"
RUNTIME_DIR = "/run/user/1000"
"""The same as for an Ubuntu machine's first user: OSWorld's tasks name its bus by the full path."""
BUS_SOCKET = f"{RUNTIME_DIR}/bus"

SERVER_PORT = 5000
"""The guest server's port in OSWorld; here it only names a connection, and nothing listens on it."""

NEEDED = ("Xvfb", "server")
"""Without these there is no desktop."""
WATCHED = (*NEEDED, "dbus-daemon", "openbox")
"""If these all end at once, something ended everything in the sandbox."""

HOME_FOLDERS = ("Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos")
PATH = "/opt/arpo/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games:/usr/sbin:/sbin"


def environment() -> dict[str, str]:
    """Return every program's environment: an ordinary user's session, the same on every desktop."""
    return {
        "HOME": HOME,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "DISPLAY": DISPLAY,
        "DBUS_SESSION_BUS_ADDRESS": f"unix:path={BUS_SOCKET}",
        "XDG_RUNTIME_DIR": RUNTIME_DIR,
        "XDG_CONFIG_HOME": f"{HOME}/.config",
        "XDG_CACHE_HOME": f"{HOME}/.cache",
        "XDG_DATA_HOME": f"{HOME}/.local/share",
        "XDG_STATE_HOME": f"{HOME}/.local/state",
        "XDG_CURRENT_DESKTOP": "GNOME",
        "XDG_SESSION_TYPE": "x11",
        # With these, programs start fast and look the same every time.
        "GDK_BACKEND": "x11",
        "GTK_USE_PORTAL": "0",
        "GTK_CSD": "0",
        "NO_AT_BRIDGE": "1",
        "GTK_A11Y": "none",
        "GIO_USE_VFS": "local",
        "GVFS_DISABLE_FUSE": "1",
        "LIBGL_ALWAYS_SOFTWARE": "1",
        "XCURSOR_SIZE": "16",
    }


def adopt() -> None:
    """Replace this process's environment by `environment()`."""
    os.environ.clear()
    os.environ.update(environment())
