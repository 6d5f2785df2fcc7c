"""Make the desktop that a config names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.desktops.config import FAKE, EnvironmentConfig
from arpo_verl.desktops.machine_provider import MachineProvider
from arpo_verl.lib.config import load_named, require

EnvironmentFactory = Callable[[EnvironmentConfig, str], DesktopEnvironment]


def environment_factory(config: EnvironmentConfig) -> EnvironmentFactory:
    """Return the callable that makes one desktop of `config.provider`; a desktop boots at its first use.

    Raises:
        ConfigError: `package.module:name` names nothing that can be imported, or that makes desktops.
    """
    if config.provider == FAKE:
        from arpo_verl.desktops.fake import FakeEnvironment

        return FakeEnvironment.from_config
    named = _load(config.provider) if ":" in config.provider else None
    if named is not None and not (isinstance(named, type) and issubclass(named, MachineProvider)):
        factory: EnvironmentFactory = named
        return factory
    from arpo_verl.desktops.osworld.environment import OSWorldEnvironment

    return functools.partial(OSWorldEnvironment, provider_class=named)


def _load(name: str) -> Any:
    """Import the factory, or the class of machines, that a recipe names."""
    hint = "; is it installed where the workers run (environment.py_executable)?"
    named = load_named("environment.provider", name, "package.module:name", hint)
    require(callable(named), "environment.provider", "a callable's name", name)
    missing = ", ".join(sorted(getattr(named, "__abstractmethods__", ())))
    require(not missing, "environment.provider", f"a class that has {missing}", name)
    return named
