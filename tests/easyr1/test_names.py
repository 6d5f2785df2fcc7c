"""EasyR1's source still says what the door relies on."""

import ast
import importlib.util
from pathlib import Path

import pytest
from support.easyr1 import require_easyr1

require_easyr1()

from easyr1.names import RELIED_ON  # noqa: E402

HOME = Path(importlib.util.find_spec("verl").origin).parents[1]


def source_of(file, name):
    text = (HOME / file).read_text()
    node = ast.parse(text)
    for part in name.split("."):
        node = next((child for child in node.body if getattr(child, "name", None) == part), None)
        assert node is not None, f"{file} has no {name}"
    return ast.get_source_segment(text, node)


@pytest.mark.parametrize(("file", "name", "says"), RELIED_ON, ids=[f"{file}:{name}" for file, name, _ in RELIED_ON])
def test_it_says_so_in_this_order(file, name, says):
    source, place = source_of(file, name), 0
    for text in says:
        place = source.find(text, place)
        assert place >= 0, f"{file}: {name} no longer says {text!r}"
