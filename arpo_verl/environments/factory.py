"""From a config to the desktop that it names."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from arpo_verl.config import require
from arpo_verl.environments.base import DesktopEnvironment
from arpo_verl.environments.config import FAKE, EnvironmentConfig
from arpo_verl.errors import ConfigError

EnvironmentFactory = Callable[[EnvironmentConfig, str], DesktopEnvironment]


def environment_factory(config: EnvironmentConfig) -> EnvironmentFactory:
    """The callable that makes one desktop of `config.provider`; nothing boots before its first use.

    Raises:
        ConfigError: `package.module:factory` names nothing that can be imported.
    """
    if config.provider == FAKE:
        from arpo_verl.environments.fake import FakeEnvironment

        return FakeEnvironment.from_config
    if ":" in config.provider:
        return _load_factory(config.provider)
    from arpo_verl.environments.osworld.environment import OSWorldEnvironment

    return OSWorldEnvironment


def _load_factory(name: str) -> EnvironmentFactory:
    module_name, _, attribute = name.partition(":")
    try:
        factory: EnvironmentFactory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"environment.provider must name an importable package.module:factory, got {name!r}: {error}; "
            "is the module installed where the workers run (environment.py_executable)?"
        ) from error
    require(callable(factory), "environment.provider", "a callable's name", name)
    return factory
