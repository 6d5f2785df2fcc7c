"""Recipes as Hydra composes them, without its half second for each: what files make is kept, values go onto a copy."""

import functools
import pickle

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from arpo_verl.versions import verl_folder
from support import ROOT

RECIPES = ROOT / "recipes"
VERLS_OWN = "verl.trainer.config"
# By its folder: to find the package Hydra would import veRL, and torch with it.
VERLS_FOLDER = f"hydra.searchpath=[file://{verl_folder() / 'trainer' / 'config'}]"


def compose_recipe(name: str, *overrides: str) -> DictConfig:
    """A recipe of `recipes/` with overrides, as `--config-dir recipes` gives it to the stock trainer."""
    return _composed(str(RECIPES), name, overrides, [VERLS_FOLDER])


def compose_verls_own(*overrides: str) -> DictConfig:
    """veRL's own configuration with overrides."""
    return _composed(None, "ppo_trainer", overrides, [])


def compose_in(folder, name: str, *overrides: str, hydra: bool = False) -> DictConfig:
    """What `--config-dir folder --config-name name` does to the stock trainer's own search path."""
    search_path = create_config_search_path("pkg://verl.trainer.config")
    search_path.prepend("command-line", f"file://{folder}", anchor="schema")
    GlobalHydra.instance().clear()
    Hydra.create_main_hydra2("test", search_path)
    try:
        return compose(name, overrides=list(overrides), return_hydra_config=hydra)
    finally:
        GlobalHydra.instance().clear()


def _composed(folder: str | None, name: str, overrides: tuple[str, ...], more: list[str]) -> DictConfig:
    files = tuple(one for one in overrides if "." not in one.partition("=")[0])
    config = pickle.loads(_of_files(folder, name, (*more, *files)))  # a tenth of what a deep copy takes
    values = OverridesParser.create().parse_overrides([one for one in overrides if one not in files])
    ConfigLoaderImpl._apply_overrides_to_config(values, config)
    return config


@functools.cache
def _of_files(folder: str | None, name: str, overrides: tuple[str, ...]) -> bytes:
    begin = initialize_config_module(VERLS_OWN, version_base=None) if folder is None else None
    with begin or initialize_config_dir(str(folder), version_base=None):
        return pickle.dumps(compose(name, overrides=list(overrides)))
