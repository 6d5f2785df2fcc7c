"""Check the files, classes and functions that a recipe names, since veRL opens most of them only later, in workers.

It imports nothing: it reads files as text, and only looks for modules.
"""

from __future__ import annotations

import ast
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from arpo_verl.config import Problems, did_you_mean, require
from arpo_verl.untrusted import read_text
from arpo_verl.versions import pip_install

_PACKAGE, _FILE = "pkg://", "file://"
_MOST_BYTES = 4 << 20
# Options for a module, each with the option for a name in that module.
_PAIRS = (
    ("reward.custom_reward_function.path", "reward.custom_reward_function.name"),
    ("trainer.v1.sampler.custom_sampler.path", "trainer.v1.sampler.custom_sampler.name"),
    ("data.custom_cls.path", "data.custom_cls.name"),
)
_CLASSES = (
    "trainer.checkpoint_callback_class",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    "actor_rollout_ref.rollout.checkpoint_manager_class",
)
_MODULES = ("actor_rollout_ref.model.external_lib", "actor_rollout_ref.actor.optim.optimizer_impl")
_FILES = (
    "actor_rollout_ref.rollout.agent.agent_loop_config_path",
    "actor_rollout_ref.rollout.quantization_config_file",
)
_FOLDERS = ("actor_rollout_ref.model.lora_adapter_path", "actor_rollout_ref.model.hf_config_path")
# veRL's loggers that need a package of their name, with the variables and files that any of can log them in.
_LOGGERS: dict[str, tuple[str, ...]] = {
    "wandb": ("WANDB_API_KEY", "WANDB_MODE", "NETRC", "~/.netrc", "~/.config/wandb/settings", "wandb/settings"),
    "swanlab": ("SWANLAB_API_KEY", "SWANLAB_MODE", "~/.swanlab"),
    "volcengine_ml_platform": ("VOLC_ACCESS_KEY_ID",),
    "clearml": ("CLEARML_API_ACCESS_KEY", "CLEARML_CONFIG_FILE", "CLEARML_OFFLINE_MODE", "~/clearml.conf"),
    "mlflow": (),
    "tensorboard": (),
    "trackio": (),
}


def check_named(config: DictConfig) -> None:
    """Refuse a recipe that names a module, a file or a name in one that does not exist.

    Raises:
        ConfigError: lists each of them.
    """
    problems = Problems()
    given = {name: OmegaConf.select(config, name, throw_on_missing=False) for name in _options()}
    for path, name in _PAIRS:
        if given[path]:
            with problems.gather():
                _check_pair(path, given[path], name, given[name])
    for option in _CLASSES:
        if given[option]:
            with problems.gather():
                _check_class(option, str(given[option]))
    for option in _MODULES:
        names = given[option] if OmegaConf.is_list(given[option]) else [given[option]]
        for name in filter(None, names):
            with problems.gather():
                require(_find(str(name)) is not None, option, "a module that can be imported", name, "correct it")
    for option in (*_FILES, *_FOLDERS):
        if given[option] and (option in _FILES or str(given[option]).startswith((".", "/", "~"))):
            with problems.gather():
                is_there = Path(str(given[option])).expanduser().exists()
                require(is_there, option, "a path that is here", given[option], "correct it, or leave it out")
    loggers = OmegaConf.select(config, "trainer.logger") or ()
    for logger in [loggers] if isinstance(loggers, str) else loggers:
        with problems.gather():
            _check_logger(config, logger)
    problems.raise_all()


def _check_logger(config: DictConfig, logger: str) -> None:
    """Check a logger's package and key, which veRL looks for when the models are loaded."""
    module = {"tracking": "wandb", "vemlp_wandb": "volcengine_ml_platform"}.get(logger, logger)
    keys = _LOGGERS.get(module)
    if keys is not None:
        given = {*os.environ, *(OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars") or {})}
        has_key = not keys or any(key in given or Path(key).expanduser().exists() for key in keys)
        remedy = "".join((f"{pip_install(module)}, ", *(f"set {key}, " for key in keys[:1]), "or leave it out"))
        ready = has_key and _find(module) is not None
        require(ready, "trainer.logger", "of loggers that are installed and logged in", logger, remedy)


def _options() -> Iterator[str]:
    for pair in _PAIRS:
        yield from pair
    yield from (*_CLASSES, *_MODULES, *_FILES, *_FOLDERS)


def _check_pair(path: str, module: str, name: str, attribute: Any) -> None:
    require(bool(attribute), name, f"given with {path}={module}", attribute, "name a class or function of that module")
    if module.startswith(_PACKAGE):
        dotted = module.removeprefix(_PACKAGE).replace("/", ".")
        file = _find(dotted)
        require(file is not None, path, "a module that can be imported", module, "correct it, or install its package")
    else:
        file = Path(module.removeprefix(_FILE))
        require(file.is_file(), path, "a Python file that is here, or pkg://MODULE", module, "correct it")
    _check_attribute(name, attribute, file)


def _check_class(option: str, dotted: str) -> None:
    module, _, attribute = dotted.rpartition(".")
    file = _find(module) if module else None
    require(file is not None, option, "a class by its module, as package.module.Class", dotted, "correct it")
    _check_attribute(option, attribute, file)


def _find(module: str) -> Path | None:
    """Return the file of a module, or the folder of its package."""
    first, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return None
    if spec is None or not rest:
        return None if spec is None else Path(spec.origin or ".")
    for folder in spec.submodule_search_locations or ():
        place = Path(folder, *rest)
        files = (
            place.with_name(f"{place.name}.py"),
            place / "__init__.py",
            place,
            *place.parent.glob(f"{place.name}.*"),
        )
        if found := next((file for file in files if file.exists()), None):
            return found
    return None


def _check_attribute(option: str, attribute: str, file: Path | None) -> None:
    known = _names_in(file)
    if known is not None:
        hint = did_you_mean(attribute, sorted(known)).removeprefix("; ") or "correct it"
        require(attribute in known, option, f"a name of {file}", attribute, hint)


def _names_in(file: Path | None) -> set[str] | None:
    """Return what a Python file defines or imports; None if we cannot see it."""
    if file is None or file.suffix != ".py":
        return None
    try:
        tree = ast.parse(read_text(file, _MOST_BYTES))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return None if "*" in names or "__getattr__" in names else names
