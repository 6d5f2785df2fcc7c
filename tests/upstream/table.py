"""Reads the tables of `names.py`."""

from __future__ import annotations

import re
from functools import cache

from upstream.names import NAMES

_LINE = re.compile(r"(?P<name>[\w.]+)(?:\((?P<parameters>.*)\)|:(?P<attributes>.*))?")


@cache
def listed() -> dict[str, tuple[str, ...] | None]:
    """Every listed name, with the parameters that we pass; None where the table says nothing of them."""
    found: dict[str, tuple[str, ...] | None] = {}
    module = ""
    for line in filter(None, re.sub(r"\n {8,}", " ", NAMES).splitlines()):
        if not line.startswith(" "):
            module = line
            found[module] = None
            continue
        match = _LINE.fullmatch(line.strip())
        assert match, f"tests/upstream/names.py: {line.strip()!r} is no line of the table"
        name = f"{module}:{match['name']}"
        parameters = match["parameters"]
        found[name] = None if parameters is None else tuple(filter(None, parameters.split(", ")))
        found |= {f"{name}.{attribute}": None for attribute in (match["attributes"] or "").split()}
    return found
