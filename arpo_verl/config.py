"""From a recipe's section to a validated, frozen dataclass."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from arpo_verl.errors import ConfigError

ConfigT = TypeVar("ConfigT")


def build_config(cls: type[ConfigT], section: str, values: Mapping[str, Any] | None) -> ConfigT:
    """Build the frozen config dataclass `cls` from a recipe's section.

    Args:
        cls: a dataclass whose `__post_init__` raises `ConfigError` for a bad value.
        section: the section's name in the recipe, for messages.
        values: plain values (an OmegaConf section resolved with `OmegaConf.to_container`), or None for all defaults.

    Raises:
        ConfigError: for a name that the section does not have, or a value that it does not take.
    """
    values = {} if values is None else dict(values)
    known = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]  # `cls` is a dataclass
    for name in values:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {section}.{close[0]}?" if close else ""
            raise ConfigError(f"{section}.{name} is not an option{hint} Known: {', '.join(known)}")
    return cls(**values)


def require(condition: bool, name: str, expected: str, got: object, remedy: str = "") -> None:
    """Raise `ConfigError` in the house's form unless `condition` holds: what was expected, what came, what to do."""
    if not condition:
        raise ConfigError(f"{name} must be {expected}, got {got!r}" + (f"; {remedy}" if remedy else ""))
