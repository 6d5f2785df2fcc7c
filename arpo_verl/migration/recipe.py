"""A recipe from a run of theirs, with what it was made of beside every line."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from arpo_verl.migration.keys import KEYS, RENAMED, find_key
from arpo_verl.migration.rules import apply_rules
from arpo_verl.migration.settings import Settings

BASE = "osworld_full"
UNSAID = "as theirs does where nothing is said"


@dataclass(frozen=True)
class Converted:
    """A recipe.

    Attributes:
        name: of the experiment, and of the file.
        options: option -> value, over the recipe `BASE`.
        sources: option -> the given keys that made it; none where their default or their trainer's code did.
        dropped: a line for each given key that makes no option, with the reason.
        lost: the same for what will differ.
    """

    name: str
    options: Mapping[str, Any]
    sources: Mapping[str, tuple[str, ...]]
    dropped: tuple[str, ...]
    lost: tuple[str, ...]


def convert(settings: Settings) -> Converted:
    """Say every setting in a recipe's terms, or name it as dropped.

    Raises:
        ConfigError: a value that no recipe can say.
    """
    given = {RENAMED.get(name, name): name for name in settings.given}
    options: dict[str, Any] = {}
    sources: dict[str, list[str]] = {}
    for key in KEYS:
        for option in key.to:
            if key.name in given:
                sources.setdefault(option, []).append(given[key.name])
            if not key.by_rule and (key.name in given or (key.differs and (settings.is_arpo or not key.arpo_only))):
                options[option] = key.convert(settings[key.name])
    ruled, lost = apply_rules(settings)
    options |= ruled
    dropped: list[str] = []
    for name, value in settings.given.items():
        row = find_key(name)
        assert row is not None, "settings have known keys alone"
        if not any(option in options for option in row.to):
            why = row.note if row.harmless is None or row.matters(value) else "so it is here"
            (lost if row.matters(value) else dropped).append(f"{name}={_short(value)}: {why}")
    made = {option: tuple(sources.get(option, ())) for option in options}
    return Converted(settings["trainer.experiment_name"], options, made, tuple(dropped), tuple(lost))


def write_recipe(converted: Converted, source: str) -> str:
    """The recipe's YAML.

    Args:
        source: what it was made of, for its first line.
    """
    lines = [f"# From {_printable(source)}, by `arpo-verl convert`; beside each option is theirs that made it.", "#"]
    for line in describe(converted):
        lines += textwrap.wrap(line, 118, initial_indent="# ", subsequent_indent="#     ", break_long_words=False)
    lines += ["", "defaults:", f"  - {BASE}", "  - _self_", ""]
    tree: dict[str, Any] = {}
    for option, value in converted.options.items():
        *sections, name = option.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[name] = _Leaf(value, ", ".join(converted.sources[option]) or UNSAID)
    for section, node in tree.items():
        lines += [*_write(section, node, 0), ""]
    return "\n".join(lines)


def describe(converted: Converted) -> list[str]:
    """What was not taken over, and why; a paragraph for what makes a difference and one for the rest."""
    lines: list[str] = []
    for title, items in (
        ("Not taken over, and the run will differ", converted.lost),
        ("Not taken over", converted.dropped),
    ):
        if items:
            lines += [f"{title}:", *(f"  {_printable(item)}" for item in items)]
    return lines


@dataclass(frozen=True)
class _Leaf:
    value: Any
    comment: str


def _write(name: str, node: Any, depth: int) -> list[str]:
    indent = "  " * depth
    if isinstance(node, _Leaf):
        value = yaml.safe_dump(node.value, default_flow_style=True, width=10**6, allow_unicode=True)
        return [f"{indent}{name}: {value.removesuffix('...' + chr(10)).strip()}  # {node.comment}"]
    lines = [f"{indent}{name}:"]
    for key, child in node.items():
        lines += _write(key, child, depth + 1)
    return lines


def _printable(text: str) -> str:
    """One line that neither ends a comment nor moves a terminal's cursor."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
