"""A recipe's sections as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from arpo_verl.errors import ConfigError


def plain_section(name: str, section: object) -> dict[str, Any]:
    """The section with its interpolations resolved; plain values stay as they are.

    Raises:
        ConfigError: it is not a mapping.
    """
    values = OmegaConf.to_container(section, resolve=True) if OmegaConf.is_config(section) else section
    if not isinstance(values, Mapping):
        raise ConfigError(f"the recipe's section `{name}` must map names to values, got {values!r}")
    return {str(key): value for key, value in values.items()}
