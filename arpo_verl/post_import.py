"""Delay registrations until the module that they need is imported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType

import wrapt

logger = logging.getLogger(__name__)


def when_imported(module_name: str, register: Callable[[ModuleType], None]) -> None:
    """Call `register` with the module once it is imported, or now if it already is; log errors."""

    def hook(module: ModuleType) -> None:
        try:
            register(module)
        except Exception:
            logger.exception("arpo_verl could not register with %s; run `arpo-verl doctor`", module_name)
            raise

    wrapt.register_post_import_hook(hook, module_name)
