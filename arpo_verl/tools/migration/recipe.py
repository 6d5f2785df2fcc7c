"""Make a recipe from a run of theirs, and name the original option beside every line."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from arpo_verl.lib.untrusted import printable
from arpo_verl.tools.migration.keys import KEYS, RENAMED, find_key
from arpo_verl.tools.migration.rules import MISSING, apply_rules
from arpo_verl.tools.migration.settings import Settings
from arpo_verl.tools.migration.shell import shorten

BASE = "osworld_full"
UNSAID = "the original's default"


@dataclass(frozen=True)
class Converted:
    """A converted run is a recipe, with what was not taken over.

    Attributes:
        name: name of the experiment, and of the file.
        options: option -> value, over the recipe `BASE`.
        sources: option -> the given keys that made it; none if it comes from their default or their trainer's code.
        to_fill: option, which is `???` in the recipe -> what theirs has in its place.
        dropped: a line with the reason for each given key that makes no option.
        lost: such lines for keys without which the run will differ.
        notes: parts of their script that could not be followed.
    """

    name: str
    options: Mapping[str, Any]
    sources: Mapping[str, tuple[str, ...]]
    to_fill: Mapping[str, str]
    dropped: tuple[str, ...]
    lost: tuple[str, ...]
    notes: tuple[str, ...]


def convert(settings: Settings) -> Converted:
    """Translate every setting to a recipe's options, or list it as dropped.

    Raises:
        ConfigError: a recipe cannot express some values; names all of them.
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
            why = row.note if row.harmless is None or row.matters(value) else "it is so here, too"
            (lost if row.matters(value) else dropped).append(f"{name}={shorten(value)}: {why}")
    lost += [f"{name}={shorten(value)}: left out by --ignore" for name, value in settings.ignored.items()]
    made = {option: tuple(sources.get(option, ())) for option in options}
    to_fill = _leave_open(settings, options)
    name = settings["trainer.experiment_name"]
    return Converted(name, options, made, to_fill, tuple(dropped), tuple(lost), settings.notes)


def _leave_open(settings: Settings, options: dict[str, Any]) -> dict[str, str]:
    """Put `???` in place of placeholders, and return what theirs has for each option."""
    given = {RENAMED.get(name, name): name for name in settings.given}
    to_fill: dict[str, str] = {}
    for key in KEYS:
        for option in key.to if key.name in settings.placeholders else ():
            if option in options:
                options[option] = MISSING
                name = given.get(key.name, key.name)
                theirs = f"the original has {name}={shorten(settings.given[name])}; " if name in settings.given else ""
                to_fill[option] = theirs + settings.placeholders[key.name]
    follows = "it depends on another option that you must fill in"
    return to_fill | {option: follows for option in options if options[option] == MISSING and option not in to_fill}


def write_recipe(converted: Converted, source: str) -> str:
    """Return the recipe's YAML.

    Args:
        source: what was converted, for the first line.
    """
    lines = [f"# From {printable(source)}, by `arpo-verl convert`. A comment names each option's original.", "#"]
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
    """Return lines with what to fill in and what was not taken over, the most important first."""
    lines: list[str] = []
    for title, items in (
        (f"Fill in before you train ({MISSING} in the recipe)", [f"{k}: {v}" for k, v in converted.to_fill.items()]),
        ("We could not follow", converted.notes),
        ("Not taken over, and the run will differ", converted.lost),
        ("Not taken over", converted.dropped),
    ):
        if items:
            lines += [f"{title}:", *(f"  {printable(item)}" for item in items)]
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
