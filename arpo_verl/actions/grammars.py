"""The action grammars by name: `gui_agent.grammar`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from arpo_verl.actions import computer_use, ui_tars
from arpo_verl.actions.reply import Reply
from arpo_verl.types import Size


@dataclass(frozen=True)
class Grammar:
    """How a family of models writes its actions. Both functions raise `ActionParseError`."""

    parse: Callable[[str, Size, Size], Reply]
    """(text, size of the resized image, size of the screen) -> the reply with points on the screen."""
    format: Callable[[Reply, Size, Size], str]
    """The inverse."""
    thousandths: bool = False
    """Whether the model writes coordinates in thousandths of the image's sides; else in its pixels."""


def _computer_use(tool: computer_use.Tool) -> Grammar:
    parse, write = partial(computer_use.parse_reply, tool=tool), partial(computer_use.format_reply, tool=tool)
    return Grammar(parse, write, thousandths=tool.relative)


GRAMMARS: Mapping[str, Grammar] = MappingProxyType(
    {
        "ui_tars": Grammar(ui_tars.parse_reply, ui_tars.format_reply),
        "qwen25_vl": _computer_use(computer_use.QWEN25),
        "qwen3_vl": _computer_use(computer_use.QWEN3),
    }
)
