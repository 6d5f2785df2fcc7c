"""Which programs a desktop has, as this machine shows it before any desktop starts."""

from __future__ import annotations

import mimetypes
import os
import shutil
from functools import lru_cache
from pathlib import Path

from arpo_verl.desktops.embedded import chrome
from arpo_verl.desktops.embedded.guest import layout
from arpo_verl.desktops.embedded.sandbox import PROGRAMS

# The guest has its own interpreter for these, whatever is on this machine's PATH.
_INTERPRETERS = {"python", "python3", "pyautogui"}
# An editor opens these types too.
_TEXTS = {"application/javascript", "application/json", "application/sql", "application/x-sh", "application/xml"}
LIBREOFFICE = Path("/usr/lib/libreoffice/program")
_LIBREOFFICE = {"libreoffice", "soffice"}  # `guest/programs` starts it
_HANDLERS = Path("/usr/share/applications/mimeinfo.cache")


def has_program(name: str) -> bool:
    """Return whether a desktop finds this program on its PATH."""
    if name == chrome.NAME:
        return chrome.is_installed()
    if name in _LIBREOFFICE:
        return os.access(LIBREOFFICE / "soffice", os.X_OK)
    is_in_guest = name in _INTERPRETERS or (PROGRAMS / name).is_file()
    return is_in_guest or shutil.which(name, path=layout.PATH) is not None


def can_open(path: str) -> bool:
    """Return whether there is a program for files with this name's ending; True for an unknown ending."""
    kind, _ = mimetypes.guess_type(path)
    return kind is None or kind in _handled_types() or kind.startswith("text/") or kind in _TEXTS


@lru_cache(maxsize=1)
def _handled_types() -> frozenset[str]:
    if not _HANDLERS.is_file():
        return frozenset()
    lines = _HANDLERS.read_text(encoding="utf-8", errors="replace").splitlines()
    return frozenset(line.partition("=")[0] for line in lines if "=" in line)
