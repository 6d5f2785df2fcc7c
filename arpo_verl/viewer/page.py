"""The page itself: files beside this module."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

ASSETS = Path(__file__).parent / "assets"


def index_page(source: Literal["server", "files", "report"], place: Literal["alone", "run", "runs"] = "alone") -> str:
    """`index.html`, with where the page finds its documents: at a server, in scripts on disk, or in itself.

    Args:
        place: `runs` is the page of a folder of runs, `run` that of one of these.
    """
    text = (ASSETS / "index.html").read_text(encoding="utf-8")
    before, _, after = text.partition('data-source="server" data-place="alone"')
    return f'{before}data-source="{source}" data-place="{place}"{after}'
