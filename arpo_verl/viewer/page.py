"""The page itself: files beside this module."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

ASSETS = Path(__file__).parent / "assets"


def index_page(source: Literal["server", "files"]) -> str:
    """`index.html`, told where the page finds its documents: asks a server, or loads scripts from disk."""
    text = (ASSETS / "index.html").read_text(encoding="utf-8")
    before, _, after = text.partition('data-source="server"')
    return f'{before}data-source="{source}"{after}'
