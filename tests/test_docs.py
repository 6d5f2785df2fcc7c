"""What the documents name exists: options, recipes, files, functions, commands."""

import ast
import functools
import re

import pytest
from support import ROOT
from support.documents import OPTIONS, PAGES

import arpo_verl
from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.tools.cli.main import build_parser

DOCUMENTS = [*(ROOT / page for page in PAGES), *sorted((ROOT / "recipes").rglob("*.yaml"))]
OPTION = re.compile(r"(?<![\w./])(environment|gui_agent|replay|data\.tasks)\.([a-z]\w*)\b(?![(])")
PACKAGE = ROOT / "arpo_verl"
ROOMS = sorted(path for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)
# `path: name` in a document, or in a room's docstring: a file of the package, and what is defined at its top.
PLACE = re.compile(r"`([\w/]+\.py): ([\w.]+)`")
# Not behind a colon: `git show COMMIT:PATH` may name what is gone.
REPOSITORY_FILE = re.compile(r"(?<![\w/.:-])((?:arpo_verl|benchmarks|docs|recipes|tests)/[\w./-]*\w)")
# Files' suffixes, and the methods of a desktop.
NO_OPTION = {"md", "py", "json", "jsonl", "yaml", *vars(DesktopEnvironment)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_option_and_choice_that_a_document_names_exists(document):
    text = document.read_text(encoding="utf-8")
    for section, option in OPTION.findall(text):
        assert option in OPTIONS[section] | NO_OPTION, f"{section}.{option}"
    for group, choice in re.findall(r"\+(baseline|policy)=(\w+)", text):
        assert (ROOT / "recipes" / group / f"{choice}.yaml").is_file()
    for name in re.findall(r"--config-name (\w+)", text):
        assert (ROOT / "recipes" / f"{name}.yaml").is_file() or name in ("NAME", "mine")
    for link in re.findall(r"\]\((?!https?://)([\w./-]+)\)", text):
        assert (document.parent / link).exists(), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_document_names_exists(document):
    commands = next(iter(build_parser()._subparsers._group_actions)).choices
    for name in re.findall(r"arpo-verl ([a-z][a-z-]*)", document.read_text(encoding="utf-8")):
        assert name in commands, f"arpo-verl {name}"


@pytest.mark.parametrize("document", [*DOCUMENTS, *ROOMS], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_place_in_the_code_that_a_document_names_exists(document):
    text = document.read_text(encoding="utf-8")
    for path, name in PLACE.findall(text):
        assert name in _names(PACKAGE / path), f"{path}: {name}"
    for path in REPOSITORY_FILE.findall(text):
        assert (ROOT / path).exists() or "NAME" in path, path


def test_the_architecture_names_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in ROOMS if path.parent.parent == PACKAGE}
    assert rooms == set(re.findall(r"^  (\w+)/ ", text, re.MULTILINE)) and len(rooms) == 10
    assert len(PLACE.findall(text)) > 60


def test_the_reference_has_every_public_name():
    pages = (page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    described = set(re.findall(r"^::: arpo_verl\.(\w+)", "\n".join(pages), re.MULTILINE))
    assert set(arpo_verl.__all__) <= described


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: str(path.parent.relative_to(PACKAGE)))
def test_every_room_says_where_its_main_way_runs(room):
    docstring = ast.get_docstring(ast.parse(room.read_text(encoding="utf-8"))) or ""
    assert PLACE.search(docstring)


def test_every_folder_of_tests_is_in_one_part_of_a_release():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    parts = [re.search(rf"^{part} := (.*)$", text, re.M)[1].split() for part in ("TRAINING", "DESKTOPS")]
    assert len(set(sum(parts, []))) == len(sum(parts, []))
    assert all((ROOT / folder).is_dir() for folder in sum(parts, [])), "the rest is of test-tools"
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for part in re.search(r"^test-release: (.*)$", text, re.M)[1].split():
        assert f"`make {part}`" in contributing


@functools.cache
def _names(file):
    """What a module defines at its top, and within its classes as `Class.name`."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for part in node.body for name in _defined(part)}
        names |= set(_defined(node))
    return names


def _defined(node):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
