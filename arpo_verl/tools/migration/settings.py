"""Read every setting of a run of theirs: the script's overrides, then its YAML, then the defaults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import did_you_mean, require
from arpo_verl.tools.migration.keys import ARPO_DEFAULTS, KEYS, RENAMED, Key, find_key
from arpo_verl.tools.migration.script import Command, Unreadable, read_script
from arpo_verl.tools.migration.source_files import find_config, flatten, load_config, load_value, read_text

# Only the ARPO reference has these.
ARPO_SECTION, ARPO_KEYS = "env.", ("algorithm.enable_replay",)
MODEL, NAME = "worker.actor.model.model_path", "trainer.experiment_name"
# A default's type -> the types that a value may have; other defaults allow only their own type.
_KINDS: dict[type, tuple[type, ...]] = {type(None): (bool, int, float, str), float: (int, float), tuple: (list, str)}
_PLACEHOLDER = re.compile(
    r"""<[^<>\n]+> | (?:^|[/_-])path[/_-]to(?:[/_-]|$) | (?:^|[/\s\[{_-])your[/\s_-] | \bx{3,}\b
      | ^(?:todo|tbd|fixme|placeholder|change_?me|replace_?me|your\w*|\.{3,}|\?{3})$""",
    re.X | re.I,
)


@dataclass(frozen=True)
class Settings:
    """The settings of one run of theirs.

    Attributes:
        values: every key of `KEYS`, by its newest name -> its value, from script, YAML or default.
        given: the keys in script or YAML, by the names used there -> their values.
        is_arpo: whether the run is the ARPO reference's, with its own replay, format reward and loss.
        placeholders: keys whose value is a placeholder, by their newest names -> why; `values` has a default for them.
        ignored: given keys that the user left out by `--ignore`.
        notes: a sentence for each thing that could not be followed.
        files: the files that were read, in that order.
    """

    values: Mapping[str, Any]
    given: Mapping[str, Any]
    is_arpo: bool
    placeholders: Mapping[str, str]
    ignored: Mapping[str, Any]
    notes: tuple[str, ...]
    files: tuple[Path, ...]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def read_settings(
    source: Path, overrides: Mapping[str, str], config: Path | None = None, ignore: Sequence[str] = ()
) -> list[Settings]:
    """Read a training script of theirs with the YAML that it names, or a YAML file alone; return each training's run.

    Args:
        source: `*.yaml`, `*.yml`, or a shell script.
        overrides: further overrides, which replace the script's.
        config: the YAML file, if it is not where the script looks for it.
        ignore: options and sections to leave out.

    Raises:
        ConfigError: a file cannot be read, an option is not theirs, or a value has a wrong type; names all of them.
    """
    if source.suffix in (".yaml", ".yml"):
        require(config is None, "--config", "left out if you convert a YAML file", str(config))
        return [_settle(Command(None, {}), (source,), overrides, ignore)]
    runs: list[Settings] = []
    problems: dict[str, None] = {}
    for command in read_script(read_text(source)):
        try:
            path = config if config is not None else find_config(command.config, source)
        except ConfigError as error:
            path, problems = None, {**problems, str(error): None}
        try:
            runs.append(_settle(command, (source,) if path is None else (source, path), overrides, ignore))
        except ConfigError as error:
            problems[str(error)] = None
    if problems:
        raise ConfigError("\n".join(problems))
    return runs


def _settle(command: Command, files: tuple[Path, ...], overrides: Mapping[str, str], ignore: Sequence[str]) -> Settings:
    """Apply the overrides to the YAML, check names and types, and add the defaults.

    Args:
        files: the script and its YAML file, or one of them.
    """
    base = load_config(files[-1]) if files[-1].suffix in (".yaml", ".yml") or len(files) > 1 else {}
    given = _lay_over(base, {**command.overrides, **overrides})
    if not given:
        read = "; ".join(command.notes) or "the training command has none that we can read"
        raise ConfigError(f"{files[0]} sets no option that can be converted: {read}; write them as KEY=VALUE")
    ignored = {name: value for name, value in given.items() if _is_ignored(name, ignore)}
    given = {name: value for name, value in given.items() if name not in ignored}
    unused = [f"--ignore {name} is not needed: the run does not set it" for name in ignore if not _uses(ignored, name)]
    is_arpo = any(name.startswith(ARPO_SECTION) or name in ARPO_KEYS for name in (*given, *ignored))
    values: dict[str, Any] = {key.name: key.default for key in KEYS} | (ARPO_DEFAULTS if is_arpo else {})
    placeholders: dict[str, str] = {} if given.get(MODEL) is not None else {MODEL: "neither script nor YAML sets it"}
    problems = _unknown(given)
    for name, value in given.items():
        key = find_key(name)
        if key is None:
            continue
        why = _why_placeholder(key, value)
        if why is not None:
            placeholders[key.name] = why
        elif (problem := _problem_of(key, name, value)) is not None:
            problems.append(problem)
        else:
            values[key.name] = value
            placeholders.pop(key.name, None)
    if problems:
        raise ConfigError("\n".join(problems))
    notes = (*command.notes, *unused)
    if NAME in placeholders or NAME not in given:
        values[NAME] = re.sub(r"\W+", "_", files[0].stem).strip("_") or "converted"
    if resources.files("arpo_verl.recipes").joinpath(f"{values[NAME]}.yaml").is_file():
        values[NAME] += "_converted"  # a shipped recipe has this name
    if NAME in placeholders:
        notes += (f"{NAME} is {_shown(given[NAME])}: {placeholders.pop(NAME)}; the recipe has {values[NAME]}",)
    texts = {name: _shown(value) if isinstance(value, Unreadable) else value for name, value in given.items()}
    return Settings(values, texts, is_arpo, placeholders, ignored, notes, files)


def _lay_over(base: Mapping[str, Any], texts: Mapping[str, str | Unreadable]) -> dict[str, Any]:
    given = dict(base)
    for key, text in texts.items():
        value = text if isinstance(text, Unreadable) else load_value(text)
        if isinstance(value, dict):  # their trainer merges a mapping into the one that is there
            nested = flatten(value, key, f"{key}.") if find_key(key) is None else {key: value}
            given |= {k: _merge(given.get(k), v) for k, v in nested.items()}
        else:
            given[key] = value
    return given


def _merge(old: Any, new: Any) -> Any:
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new


def _is_ignored(name: str, ignore: Sequence[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in ignore)


def _uses(ignored: Mapping[str, Any], one: str) -> bool:
    return any(_is_ignored(name, [one]) for name in ignored)


def _unknown(given: Mapping[str, Any]) -> list[str]:
    """Return lines with all options that neither project has and how to leave them out, or none."""
    known = [*(key.name for key in KEYS), *RENAMED]
    names = [name for name in given if find_key(name) is None]
    if not names:
        return []
    sections = {name.partition(".")[0] for name in known}
    # An unknown section is left out as a whole.
    leave_out = dict.fromkeys(name if name.partition(".")[0] in sections else name.partition(".")[0] for name in names)
    lines = [f"{name}{did_you_mean(name, known)}" for name in names]
    return [
        "Neither the ARPO reference nor EasyR1 has these options:",
        *(f"  {line}" for line in lines),
        "Correct them, or leave them out: " + " ".join(f"--ignore {shlex.quote(name)}" for name in leave_out),
    ]


def _problem_of(key: Key, name: str, value: Any) -> str | None:
    """Return what is wrong with a value's type; None if it is right, or if the option is dropped."""
    kinds: tuple[type, ...] = _KINDS.get(type(key.default), (type(key.default),))
    ok = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if not key.to or ok or (value is None and (key.default is None or key.optional)):
        return None
    expected = " or ".join(kind.__name__ for kind in kinds)
    return f"{name} must be {expected}, got {str(value)[:100]!r}; override it: {name}=VALUE"


def _why_placeholder(key: Key, value: Any) -> str | None:
    """Return why a value must still be filled in; None if it is a real value, or is not used."""
    if not key.to:
        return None
    if isinstance(value, Unreadable):
        return value.because
    if key.name in ("data.train_files", "data.val_files") and not str(value).endswith(".json"):
        return "a recipe's tasks are a JSON index of desktop tasks"
    for text in _texts(value):
        if not text.strip():
            return "it is empty"
        if "${" in text:
            return "only their trainer could resolve it"
        if _PLACEHOLDER.search(text):
            return "it is a placeholder"
    return None


def _texts(value: Any) -> list[str]:
    if isinstance(value, (list, dict)):
        parts = value if isinstance(value, list) else [*value, *value.values()]
        return [text for part in parts for text in _texts(part)]
    return [value] if isinstance(value, str) else []


def _shown(value: Any) -> str:
    return value.source if isinstance(value, Unreadable) else repr(value)
