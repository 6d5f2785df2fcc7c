"""The documentation's pages, their fenced blocks, and the options that they may name."""

import dataclasses
import re
import textwrap
from typing import NamedTuple

from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.tasks.selection import TaskSelection
from support import ROOT

PAGES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", *PAGES]
_SECTIONS = {
    "environment": EnvironmentConfig,
    "gui_agent": GuiAgentConfig,
    "replay": ReplayConfig,
    "data.tasks": TaskSelection,
}
OPTIONS = {section: {field.name for field in dataclasses.fields(cls)} for section, cls in _SECTIONS.items()}
_BLOCK = re.compile(r"^( *)```([\w-]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(^|\s)#.*")


class Block(NamedTuple):
    language: str
    text: str


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str) -> list[Block]:
    """Of a page, in order."""
    return [Block(language, textwrap.dedent(text)) for _, language, text in _BLOCK.findall(page(name))]


def code(name: str, language: str = "python") -> list[str]:
    """The blocks of a page in one language."""
    return [block.text for block in blocks(name) if block.language == language]


def commands(name: str) -> list[str]:
    """The commands of a page's shell blocks, a line each, without comments."""
    text = re.sub(r"\\\n\s*", "", "".join(code(name, "bash")))
    return [typed for line in text.splitlines() if (typed := _COMMENT.sub("", line).strip())]
