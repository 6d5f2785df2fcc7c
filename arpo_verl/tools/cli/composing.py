"""Compose a recipe as the trainer does, or report all reasons at once why it does not compose."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import Problems, did_you_mean
from arpo_verl.lib.removed_options import removal
from arpo_verl.lib.untrusted import read_text
from arpo_verl.tools.cli.recipes import find_recipe, recipes_folder
from arpo_verl.versions import verl_folder

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

_MOST_BYTES = 1 << 20
"""Most bytes of a recipe's file; the longest of ours has 6 KB."""


def compose_recipe(recipe: Path, overrides: Sequence[str]) -> DictConfig:
    """Compose a recipe as the trainer does.

    Raises:
        ConfigError: the file is no recipe, or does not compose; the message has all reasons.
        MissingDependencyError: veRL is absent, or a version that we do not support.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from arpo_verl.tools.migration.source_files import check_nesting

    if not recipe.is_file():
        others = [path.stem for path in recipe.parent.glob("*.yaml")] if recipe.parent.is_dir() else []
        hint = did_you_mean(recipe.stem, others, str(recipe.parent / "_")[:-1])
        raise ConfigError(f"there is no recipe {recipe}{hint.replace('?', '.yaml?')}")
    try:
        check_nesting(read_text(recipe, _MOST_BYTES), str(recipe))
        config = _compose(recipe, overrides)
    except YAMLError as error:
        raise ConfigError(f"{recipe} is not YAML: {' '.join(str(error).split())}") from error
    except (HydraException, OmegaConfBaseException, UnicodeDecodeError) as error:
        problems = Problems()
        problems.errors += [ConfigError(reason) for reason in _reasons(recipe, overrides)]
        problems.raise_all()
        raise ConfigError(f"{recipe} does not compose: {error}") from error
    if "device" not in (config.get("trainer") or ()):
        raise ConfigError(
            f"{recipe} is only a part of recipes; to train, choose one that `arpo-verl recipes list` names"
        )
    return config


def compose_named(name: str, overrides: Sequence[str] = ()) -> DictConfig:
    """Compose a shipped recipe, by its name, or a YAML file.

    Raises:
        ConfigError: as `compose_recipe`, or there is no such recipe.
    """
    return compose_recipe(find_recipe(name), overrides)


def _compose(recipe: Path, overrides: Sequence[str]) -> DictConfig:
    from hydra import compose, initialize_config_dir

    # A copied recipe finds its bases here. These are folders, since for packages Hydra would import veRL and torch.
    search = f"hydra.searchpath=[file://{verl_folder() / 'trainer' / 'config'},file://{recipes_folder()}]"
    with initialize_config_dir(str(recipe.parent.absolute()), version_base=None):
        return compose(recipe.stem, overrides=[search, *overrides])


def _reasons(recipe: Path, texts: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the command line; nothing if the recipe's file is wrong, or if we do not know."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, choices, values = OverridesParser.create(), [], []
    for text in texts:
        try:
            override = parser.parse_override(text)
        except HydraException:
            yield f"{text!r} must be KEY=VALUE; put quotes around a value with special characters: KEY=\"'VALUE'\""
            continue
        known = _choices_of(override.key_or_group, recipe)
        if not known:
            values.append(override)
        elif str(override.value()) in known:
            choices.append(text)
        else:
            yield _unknown_choice(override, known)
    try:
        base = _compose(recipe, choices)
    except Exception:  # the caller has the first error
        return
    for override in values:
        if not (override.is_add() or override.is_force_add() or _has(base, override.key_or_group)):
            yield _unknown_key(override, base)


def _choices_of(group: str, recipe: Path) -> list[str]:
    """Return the choices of a group, ours or beside the recipe; empty for an option."""
    folders = (folder / group for folder in (recipes_folder(), recipe.parent))
    return sorted({path.stem for folder in folders if folder.is_dir() for path in folder.glob("*.yaml")})


def _unknown_choice(override: Override, known: Sequence[str]) -> str:
    group, hint = override.key_or_group, did_you_mean(override.value(), known)
    return f"there is no {group} {override.value()!r}{hint or '.'} Known: {', '.join(known)}"


def _has(config: Any, key: str) -> bool:
    for part in key.split("."):
        try:
            if part not in config.keys():
                return False
            config = config._get_node(part)
            config = config._dereference_node() or config
        except AttributeError:  # a value, a list, or nothing
            return False
    return True


def _unknown_key(override: Override, base: DictConfig) -> str:
    from omegaconf import OmegaConf

    key = override.key_or_group
    if message := removal(key):
        return message
    known = list(_names(OmegaConf.to_container(base, resolve=False)))
    section, _, last = key.rpartition(".")
    ours = [field.name for field in dataclasses.fields(_sections()[section])] if section in _sections() else []
    if last in ours:
        return f"the recipe does not name {key} yet; write +{override.input_line}"
    beside = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == section]
    hint = did_you_mean(last, beside, f"{section}." if section else "") or did_you_mean(last, ours, f"+{section}.")
    if not hint and not section:  # the name without its section
        by_last = {name.rpartition(".")[2]: name for name in reversed(known)}
        meant = did_you_mean(last, by_last).removeprefix("; did you mean ").removesuffix("?")
        hint = f"; did you mean {by_last[meant]}?" if meant else ""
    return f"the recipe has no option {key}{hint or f'; to add one, write +{override.input_line}'}"


@cache
def _sections() -> dict[str, type[Any]]:
    """Return our own sections, whose options a recipe need not name."""
    from arpo_verl.agent.rollout.config import GuiAgentConfig
    from arpo_verl.desktops.config import EnvironmentConfig
    from arpo_verl.replay.config import ReplayConfig
    from arpo_verl.tasks.selection import TaskSelection

    return {
        "data.tasks": TaskSelection,
        "environment": EnvironmentConfig,
        "gui_agent": GuiAgentConfig,
        "replay": ReplayConfig,
    }


def _names(node: Any, prefix: str = "") -> Iterator[str]:
    for key, value in node.items() if isinstance(node, dict) else ():
        yield f"{prefix}{key}"
        yield from _names(value, f"{prefix}{key}.")
