"""What the documents name exists: options, recipes, files, commands."""

import dataclasses
import re

import pytest
from support import ROOT

from arpo_verl.cli.main import build_parser
from arpo_verl.environments.base import DesktopEnvironment
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.tasks.selection import TaskSelection

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "recipes").rglob("*.yaml"))]
SECTIONS = {
    "environment": EnvironmentConfig,
    "gui_agent": GuiAgentConfig,
    "replay": ReplayConfig,
    "data.tasks": TaskSelection,
}
OPTION = re.compile(r"(?<![\w./])(environment|gui_agent|replay|data\.tasks)\.([a-z]\w*)\b(?![(])")
# Files' suffixes, and the methods of a desktop.
NO_OPTION = {"md", "py", "json", "jsonl", "yaml", *vars(DesktopEnvironment)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_option_and_choice_that_a_document_names_exists(document):
    text = document.read_text(encoding="utf-8")
    for section, option in OPTION.findall(text):
        known = {field.name for field in dataclasses.fields(SECTIONS[section])}
        assert option in known | NO_OPTION, f"{section}.{option}"
    for group, choice in re.findall(r"\+(baseline|policy)=(\w+)", text):
        assert (ROOT / "recipes" / group / f"{choice}.yaml").is_file()
    for name in re.findall(r"--config-name (\w+)", text):
        assert (ROOT / "recipes" / f"{name}.yaml").is_file() or name == "NAME"
    for link in re.findall(r"\]\((?!https?://)([\w./-]+)\)", text):
        assert (document.parent / link).exists(), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_document_names_exists(document):
    commands = next(iter(build_parser()._subparsers._group_actions)).choices
    for name in re.findall(r"arpo-verl ([a-z][a-z-]*)", document.read_text(encoding="utf-8")):
        assert name in commands, f"arpo-verl {name}"
