"""Find, read and parse the files of a run of theirs, within bounds, since strangers wrote them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import require
from arpo_verl.lib.untrusted import read_text as read_file
from arpo_verl.tools.migration.keys import find_key
from arpo_verl.tools.migration.script import MAX_BYTES, Unreadable

MAX_DEPTH, MAX_NESTING = 8, 50
"""Deepest sections of options, and deepest YAML."""
MOST = 2**63


def find_config(name: str | Unreadable | None, script: Path) -> Path | None:
    """Find the YAML file that a script names by `config=`, relative to the repository's root or the script's folder.

    The search begins in the script's own folder, then the two above it, then for a file of that name beside the script,
    for files that were copied out of a repository. The current folder comes last: its file may belong to another
    project. No name may lead out of these folders, since a stranger's script could name any file of the user.

    Raises:
        ConfigError: none of these folders has it.
    """
    if name is None:
        return None
    text = name.source if isinstance(name, Unreadable) else name
    # The unknown part is a folder that the script looks up: the rest of the path still names the file.
    known = Path(re.sub(r"^.*(?:[`})]|\$\w+)/*", "", text, flags=re.S)) if isinstance(name, Unreadable) else Path(text)
    folders = [folder for folder in script.absolute().parents[:3] if folder.name]
    around = [*((folder, folder / known) for folder in folders)]
    around += [(script.absolute().parent, script.absolute().parent / known.name), (Path.cwd(), Path.cwd() / known)]
    places = [place for folder, place in around if os.path.realpath(place).startswith(f"{os.path.realpath(folder)}/")]
    found = next((place for place in places if known.name and place.is_file()), None)
    if found is None:
        where = ", ".join(dict.fromkeys(str(place) for place in places if known.name))
        raise ConfigError(
            f"the script's config={text} was not found{f': there is no {where}' if where else ''}; "
            "pass its path: --config YAML"
        )
    return found


def read_text(path: Path) -> str:
    """Read a text file of at most `MAX_BYTES`, also through a link, but no pipe and no device.

    Raises:
        ConfigError: `path` is no such file.
    """
    try:
        return read_file(path, MAX_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path} as a text file: {error}") from error


class _Loader(yaml.SafeLoader):
    """Read YAML as OmegaConf does for their trainers: `1e-6` is a number, and a key appears once.
    Refuse huge numbers: none of their configurations has any."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(names) != len(node.value) or len(set(names)) != len(names):
            raise yaml.YAMLError(f"a mapping must have plain keys, each once, got {names[:20]}")
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: Any) -> int:
        number: int = super().construct_yaml_int(node)
        if abs(number) >= MOST:
            raise yaml.YAMLError("it has a number of more than 64 bits")
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d[\d_]*)(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def check_nesting(text: str, name: str) -> None:
    """Refuse YAML that would keep a reader busy for ever, as one that copies an alias's content at each alias.

    Raises:
        ConfigError: it has an alias, or is nested too deeply.
        YAMLError: it is not YAML.
    """
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_NESTING:
            raise ConfigError(f"{name} has more than {MAX_NESTING} nested levels; write its options with fewer")
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(
                f"{name} has a YAML alias (*NAME), which we do not read; write the value out, or refer to an option "
                "with ${NAME}"
            )


def load_config(path: Path) -> dict[str, Any]:
    """Return the options of a YAML file of theirs: `a.b` -> value.

    Raises:
        ConfigError: the file is not plain YAML.
    """
    text = read_text(path)
    try:
        check_nesting(text, "it")
        tree = yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} must be plain YAML of options, but: {str(error)[:300]}") from error
    return flatten(tree, str(path))


def load_value(text: str) -> Any:
    """Read the value after `KEY=` as OmegaConf does: as YAML, or else as text."""
    try:
        check_nesting(text, "it")
        return yaml.load(text, Loader=_Loader) if text else ""  # noqa: S506  a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def flatten(tree: Any, name: str, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Flatten {"a": {"b": 1}} to {"a.b": 1}; an option that takes a mapping stays whole.

    Raises:
        ConfigError: `tree` is not made of sections.
    """
    require(isinstance(tree, dict) and depth <= MAX_DEPTH, prefix[:-1] or name, "sections of options", str(tree)[:100])
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        full = f"{prefix}{key}"
        if find_key(full) is None and isinstance(value, dict):
            flat |= flatten(value, name, f"{full}.", depth + 1)
        elif find_key(full) is None and value is None:
            continue  # an empty section
        else:
            flat[full] = value
    return flat
