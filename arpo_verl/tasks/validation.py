"""Whether tasks can run on the desktops of a recipe, asked before any of them starts."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable

from arpo_verl.environments.config import EMBEDDED, EnvironmentConfig
from arpo_verl.errors import TaskError
from arpo_verl.tasks.programs import programs_of
from arpo_verl.types import Task

# Debian's package of a program, where it has another name; None: Debian does not have it.
_PACKAGES: dict[str, str | None] = {
    "bwrap": "bubblewrap",
    "code": None,
    "dbus-launch": "dbus-x11",
    "dconf": "dconf-cli",
    "google-chrome": "chromium, and a google-chrome that starts it",
    "gnome-terminal-server": "gnome-terminal",
    "gsettings": "libglib2.0-bin",
    "import": "imagemagick",
    "libreoffice": "libreoffice",
    "notify-send": "libnotify-bin",
    "rox": "rox-filer",
    "soffice": "libreoffice",
    "update-desktop-database": "desktop-file-utils",
    "xdg-open": "xdg-utils",
    "xprop": "x11-utils",
    "xwininfo": "x11-utils",
    "xclock": "x11-apps",
    "xcalc": "x11-apps",
}
# The guest has an interpreter of its own for these, whatever is on this machine's PATH.
_GUEST_OWN = {"python", "python3", "pyautogui"}


def check_tasks_run_here(tasks: Iterable[Task], environment: EnvironmentConfig) -> None:
    """Check that the programs which tasks start are installed, where the desktops are this machine's own.

    Raises:
        TaskError: names every program that is not, its Debian package and the tasks that need it.
    """
    if environment.provider != EMBEDDED:
        return
    needed_by: defaultdict[str, list[str]] = defaultdict(list)
    for task in tasks:
        for program in programs_of(task.spec):
            if program not in _GUEST_OWN and shutil.which(program) is None:
                needed_by[program].append(task.task_id)
    if needed_by:
        named = "\n".join(f"  {_described(program)}, needed by {_some(ids)}" for program, ids in needed_by.items())
        raise TaskError(
            f"the tasks' programs must be installed for the embedded desktop, {len(needed_by)} are not; install them "
            f"or choose other tasks by data.tasks.ids:\n{named}"
        )


def _described(program: str) -> str:
    package = _PACKAGES.get(program, program)
    return f"{program} (not in Debian)" if package is None else f"{program} (apt-get install {package})"


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
