"""Decide by a method which groups get which past successes; a method is a file.

`replay/methods/base.py: ReplayMethod` has what methods share, `load_method` finds the one that `replay.method` names.
"""

from __future__ import annotations

from collections.abc import Mapping

from arpo_verl.lib.config import build_config, did_you_mean, load_named, require
from arpo_verl.replay.config import METHODS, ReplayConfig
from arpo_verl.replay.methods.base import ReplayMethod

OPTIONS = "replay.method_options"


def method_that_replaces(config: ReplayConfig, where: str, remedy: str = "") -> ReplayMethod:
    """Return the recipe's method for a trainer or an estimator that knows only replays in a failure's place.

    Args:
        where: which it is, such as `with EasyR1`.
        remedy: what else to do about it.

    Raises:
        ConfigError: the method does more, or `load_method` raises it.
    """
    method = load_method(config)
    require(
        method.only_replaces and type(method).token_weight is ReplayMethod.token_weight,
        "replay.method",
        f"one that only replaces failures, as arpo and fresh, {where}",
        config.method,
        remedy,
    )
    return method


def load_method(config: ReplayConfig) -> ReplayMethod:
    """Return the recipe's method with its options.

    Raises:
        ConfigError: there is no such method, or an option of it is wrong.
    """
    expected = f"one of {', '.join(METHODS)}, or a class such as my_module:MyMethod"
    path, hint = METHODS.get(config.method, config.method), did_you_mean(config.method, METHODS)
    cls = load_named("replay.method", path, expected, hint)
    is_method = isinstance(cls, type) and issubclass(cls, ReplayMethod)
    require(is_method, "replay.method", "a subclass of arpo_verl.replay.methods.base.ReplayMethod", config.method)
    options = config.method_options
    require(isinstance(options, Mapping), OPTIONS, "a mapping of the method's options", options)
    method: ReplayMethod = build_config(cls, OPTIONS, options)
    return method
