"""Every setting of a run of theirs: the script's overrides over its YAML over their defaults."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from arpo_verl.config import require
from arpo_verl.errors import ConfigError
from arpo_verl.migration.keys import ARPO_DEFAULTS, KEYS, RENAMED, Key, find_key
from arpo_verl.migration.script import MAX_BYTES, Command, Unreadable, read_script

# What only the ARPO reference has.
ARPO_SECTION, ARPO_KEYS = "env.", ("algorithm.enable_replay",)
MAX_DEPTH = 8
# A default's type -> the types of values; else its own.
_KINDS: dict[type, tuple[type, ...]] = {type(None): (bool, int, float, str), float: (int, float), tuple: (list, str)}


@dataclass(frozen=True)
class Settings:
    """A run of theirs.

    Attributes:
        values: every key of `KEYS` -> its value, by script, YAML or default; keys as `RENAMED` calls them.
        given: the keys that script or YAML say, by the names that they say, with their values.
        is_arpo: whether the ARPO reference runs it, which has no EasyR1's replay, format reward and loss.
    """

    values: Mapping[str, Any]
    given: Mapping[str, Any]
    is_arpo: bool

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def read_settings(source: Path, overrides: Mapping[str, str], config: Path | None = None) -> Settings:
    """Read a training script of theirs with the YAML that it names, or a YAML file alone.

    Args:
        source: `*.yaml`, `*.yml`, or a shell script.
        overrides: more of them, as the script has: what is to count instead of what it says.
        config: the YAML file, where it does not lie where the script says.

    Raises:
        ConfigError: something cannot be read, is no option of theirs, or has a value of another type.
    """
    if source.suffix in (".yaml", ".yml"):
        require(config is None, "--config", "left out where a YAML file is converted", str(config))
        command = Command(None, {})
        path: Path | None = source
    else:
        command = read_script(_read(source))
        path = config if config is not None else _find_config(command.config, source)
    texts: dict[str, str | Unreadable] = {**command.overrides, **overrides}
    given = _flatten(_load(_read(path), str(path))) if path is not None else {}
    for key, text in texts.items():
        if isinstance(text, Unreadable):
            raise ConfigError(f"{key} cannot be read: {text.because}; say what it is to be: {key}=VALUE")
        value = _load_value(text)
        if isinstance(value, dict):  # theirs lays a mapping over the one that is there
            nested = _flatten(value, f"{key}.") if find_key(key) is None else {key: value}
            value = {k: _merge(given.get(k), v) for k, v in nested.items()}
        given |= value if isinstance(value, dict) else {key: value}
    return _settle(given)


def _settle(given: Mapping[str, Any]) -> Settings:
    """Check names and types, and put the defaults in."""
    is_arpo = any(name.startswith(ARPO_SECTION) or name in ARPO_KEYS for name in given)
    values = {key.name: key.default for key in KEYS} | (ARPO_DEFAULTS if is_arpo else {})
    for name, value in given.items():
        key = find_key(name)
        if key is None:
            close = difflib.get_close_matches(name, [*values, *RENAMED], n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{name} is no option of the ARPO reference or of EasyR1{hint}")
        _check_value(key, name, value)
        values[RENAMED.get(name, name)] = value
    return Settings(values, given, is_arpo)


def _check_value(key: Key, name: str, value: Any) -> None:
    kinds: tuple[type, ...] = _KINDS.get(type(key.default), (type(key.default),))
    ok = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    ok = ok or value is None and (key.default is None or key.optional)
    require(ok, name, " or ".join(kind.__name__ for kind in kinds), value)
    for text in _texts(value):
        require("${" not in text, name, "plain text, without `${`", text[:100], f"say what it is to be: {name}=VALUE")


def _texts(value: Any) -> list[str]:
    if isinstance(value, (list, dict)):
        parts = value if isinstance(value, list) else [*value, *value.values()]
        return [text for part in parts for text in _texts(part)]
    return [value] if isinstance(value, str) else []


def _find_config(name: str | None, script: Path) -> Path | None:
    """The YAML file of a script, which names it as seen from where it is to be started: the repository's root."""
    if name is None:
        return None
    places = [Path.cwd(), *script.absolute().parents[:3]]
    found = next((place / name for place in places if (place / name).is_file()), None)
    where = ", ".join(str(place) for place in places)
    require(found is not None, "config= of the script", f"a file below {where}", name, "name it by --config")
    return found


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        require(len(data) <= MAX_BYTES, str(path), f"at most {MAX_BYTES} bytes", "more")
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"what is converted must be a text file that can be read, got {path}: {error}") from error


class _Loader(yaml.SafeLoader):
    """As OmegaConf, which their trainers read it by: `1e-6` is a number, and a key stands once. Anchors, by which a
    short file could come to be endless, are refused: no configuration of theirs has one."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an anchor and an alias of it, which are not read")
        self.depth = getattr(self, "depth", 0) + 1
        if self.depth > 4 * MAX_DEPTH:
            raise yaml.YAMLError("it is nested too deeply")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(names) != len(node.value) or len(set(names)) != len(names):
            raise yaml.YAMLError(f"a mapping must have each key once, and plain ones, got {names[:20]}")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d[\d_]*)(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _load(text: str, name: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name} must be plain YAML of their options, got {str(error)[:300]}") from error


def _load_value(text: str) -> Any:
    """As OmegaConf reads what stands behind `KEY=`: what is no YAML is text."""
    try:
        return yaml.load(text, Loader=_Loader) if text else ""  # noqa: S506  a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _merge(old: Any, new: Any) -> Any:
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new


def _flatten(tree: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; an option that takes a mapping stays whole."""
    name = prefix.rstrip(".") or "the YAML file"
    require(isinstance(tree, dict) and depth <= MAX_DEPTH, name, "sections of options", str(tree)[:100])
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        full = f"{prefix}{key}"
        if find_key(full) is None and isinstance(value, dict):
            flat |= _flatten(value, f"{full}.", depth + 1)
        elif find_key(full) is None and value is None:
            continue  # an empty section
        else:
            flat[full] = value
    return flat
