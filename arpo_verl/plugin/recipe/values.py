"""Check values in ways that need no table: missing ones, wrong types, unknown names, and what veRL itself refuses."""

from __future__ import annotations

import contextlib
import io
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import Problems, did_you_mean, one_of, require
from arpo_verl.lib.removed_options import REMOVED, removal
from arpo_verl.plugin.resume import leaves
from arpo_verl.versions import verl_folder

# veRL's own defaults for these are empty, or paths of an example of its own.
_NEEDED = {
    "data.train_files": "No task files for training given. Add data.train_files=PATH.",
    "data.val_files": "No task files for validation given. Add data.val_files=PATH.",
    "actor_rollout_ref.model.path": "No model given. Add actor_rollout_ref.model.path=FOLDER.",
    "actor_rollout_ref.rollout.name": "No rollout engine given. Add actor_rollout_ref.rollout.name=vllm.",
}
# veRL calculates with these before it trains, and fails on anything but a number. The smallest value of each.
_NUMBERS = {
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 1,
    "trainer.total_epochs": 0,
    "trainer.save_freq": None,
    "trainer.test_freq": None,
    "data.train_batch_size": 1,
    "data.max_prompt_length": 1,
    "data.max_response_length": 1,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 1,
    "actor_rollout_ref.rollout.n": 1,
}
_NUMBER_OR_TEXT = "algorithm.rollout_correction.rollout_is_threshold"
# Our options are checked by name elsewhere, and others may have any name.
_OURS = ("gui_agent", "environment", "replay", "run_dir", "variant")
_CHOICES = ("baseline", "context", "engine", "policy")
_NOT_COMPARED = (*_OURS, "data.tasks", "ray_kwargs", "hydra", "model_engine")
# Sections that veRL turns into objects in a worker, minutes later. It checks their values only then.
_OBJECTS = ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "trainer.v1.separate_async.hybrid_rollout")
# Estimators that need something that the V1 trainer does not compute.
_WITHOUT_V1 = {"remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline"}
_OUR_SAMPLERS = "pkg://arpo_verl.plugin.sampler"


def is_given(config: DictConfig, name: str) -> bool:
    """Return whether somebody set it: it is neither empty nor an example path of veRL's that does not exist."""
    value = OmegaConf.select(config, name, throw_on_missing=False)
    return value is not None and (not is_default(name, value) or Path(str(value)).expanduser().exists())


def is_default(name: str, value: object) -> bool:
    """Return whether an option has veRL's own default."""
    default: Any = verls_defaults()
    for part in name.split("."):
        if not isinstance(default, Mapping) or part not in default:
            return False
        default = default[part]
    return bool(value == default)


def check_values(config: DictConfig) -> None:
    """Refuse values that no run could start with.

    Raises:
        ConfigError: lists each removed option, and each value that is missing or of the wrong kind.
    """
    problems = Problems()
    given = OmegaConf.to_container(config, resolve=False)
    problems.errors += [ConfigError(removal(name) or name) for name in REMOVED if _has(given, name)]
    for name, message in _NEEDED.items():
        if not is_given(config, name):
            problems.errors.append(ConfigError(message))
    problems.errors += [ConfigError(message) for message in _wrong_kinds(config)]
    problems.raise_all()


def check_filled(config: DictConfig, recipe: Path, overrides: Sequence[str]) -> None:
    """Refuse each `???` of the recipe's file for which OmegaConf would silently take a value of the recipe's base.

    The base's value may be null, as of `data.seed`. Options that are missing in both are refused elsewhere.

    Raises:
        ConfigError: lists these options.
    """
    given = {text.lstrip("+").partition("=")[0] for text in overrides}
    problems = Problems()
    for name, value in leaves(yaml.safe_load(recipe.read_text(encoding="utf-8"))):
        if value == "???" and name not in given and not _is_refused_elsewhere(config, name):
            what = f"{recipe.name} has no value for {name} (???). Write it there, or add {name}=VALUE."
            problems.errors.append(ConfigError(what))
    problems.raise_all()


def _is_refused_elsewhere(config: DictConfig, name: str) -> bool:
    parent, _, key = name.rpartition(".")
    section = OmegaConf.select(config, parent)
    is_missing = isinstance(section, DictConfig) and OmegaConf.is_missing(section, key)
    return is_missing or (name in _NEEDED and not is_given(config, name))


def check_by_verl(config: DictConfig) -> None:
    """Let veRL check the recipe: by `validate_config`, as its command does, and by the objects that its workers make.

    Both run without a GPU and load no model. We leave the critic out, since veRL would load its tokenizer.

    Raises:
        ConfigError: has each refusal in veRL's own words.
    """
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
    from verl.trainer.ppo.utils import need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    if any(_wrong_kinds(config)):
        return  # veRL would only fail in its arithmetic
    problems = Problems()
    with problems.gather(), _in_verls_words():
        own = OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"])
        OmegaConf.to_container(own, resolve=True)  # as veRL does at its start
    with problems.gather(), _in_verls_words():
        validate_config(config, need_reference_policy(config), use_critic=False)
    for name in _OBJECTS:
        with problems.gather(), _in_verls_words():
            omega_conf_to_dataclass(OmegaConf.select(config, name))
    # veRL looks for these two names only after the first rollouts. A user's own sampler may bring an estimator, and a
    # library for the workers may bring a loss.
    if OmegaConf.select(config, "trainer.v1.sampler.custom_sampler.path") in (None, _OUR_SAMPLERS):
        with problems.gather():
            known = {*ADV_ESTIMATOR_REGISTRY, "replay_grpo"} - _WITHOUT_V1
            _check_name(config, "algorithm.adv_estimator", known)
    if config.actor_rollout_ref.model.get("external_lib") is None:
        with problems.gather():
            _check_name(config, "actor_rollout_ref.actor.policy_loss.loss_mode", POLICY_LOSS_REGISTRY)
    problems.raise_all()


@contextlib.contextmanager
def _in_verls_words() -> Iterator[None]:
    """Turn whatever veRL's checks raise into an error of ours. What they print is hidden."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except ImportError:
        pass  # a package is not installed here
    except Exception as error:
        said = _words_of(error.__cause__ if isinstance(error, HydraException) and error.__cause__ else error)
        if "vllm version None" not in said:  # vLLM is not installed here; `doctor` checks packages
            raise ConfigError(f"veRL refuses the recipe: {said}") from error


def _words_of(error: BaseException) -> str:
    """Return the error's text on one line; for an assertion without text, the assertion."""
    said = " ".join(str(error).split())
    return said or str(traceback.extract_tb(error.__traceback__)[-1].line)


def _check_name(config: DictConfig, option: str, known: Collection[str]) -> None:
    value, rule = OmegaConf.select(config, option), one_of(sorted(known))
    require(rule.holds(value), option, rule.expected, value, rule.remedy_for(value))


def _has(node: Any, name: str) -> bool:
    """Return whether a recipe names an option, whatever its value."""
    first, _, rest = name.partition(".")
    return isinstance(node, Mapping) and first in node and (not rest or _has(node[first], rest))


def _wrong_kinds(config: DictConfig) -> Iterator[str]:
    """Find text where veRL has a number or a boolean, since it would read `flase` as true, and bad `_NUMBERS`."""
    for name, default in leaves(verls_defaults()):
        if not isinstance(default, (bool, int, float)) or name == _NUMBER_OR_TEXT:
            continue
        try:
            value = OmegaConf.select(config, name, throw_on_missing=False)
        except OmegaConfBaseException:  # veRL refuses the reference
            continue
        least = _NUMBERS.get(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name in _NUMBERS and (not is_number or (least is not None and value < least)):
            yield f"{name} must be {'a number' if least is None else f'a number of at least {least}'}, got {value!r}"
        elif isinstance(value, str):
            yield f"{name} must be {'true or false' if isinstance(default, bool) else 'a number'}, got {value!r}"


def doubtful_names(config: DictConfig) -> list[str]:
    """List options that neither veRL nor we have, and that look like a typo of one.

    They are notes, not refusals: veRL accepts names that its files do not list, and passes some sections on unchecked.
    """
    given = OmegaConf.to_container(config, resolve=False)
    return [f"{name} is not an option of veRL's{near}" for name, near in _unknown_names(given, verls_defaults(), "")]


def _unknown_names(given: Any, known: Any, prefix: str) -> Iterator[tuple[str, str]]:
    if not isinstance(given, Mapping) or not isinstance(known, Mapping) or not known:
        return
    for key, value in given.items():
        name = f"{prefix}{key}"
        if name in _NOT_COMPARED:
            continue
        if key in known:
            yield from _unknown_names(value, known[key], f"{name}.")
        elif near := did_you_mean(key, [*map(str, known), *(() if prefix else (*_OURS, *_CHOICES))], prefix):
            yield name, near


@cache
def verls_defaults() -> Mapping[str, Any]:
    """Return veRL's own configuration for the trainer that we plug into, with its references unresolved."""
    file = verl_folder() / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is faster
    loaded: Mapping[str, Any] = yaml.load(file.read_text("utf-8"), loader)  # noqa: S506
    return loaded
