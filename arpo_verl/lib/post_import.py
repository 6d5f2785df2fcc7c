"""Delay registrations until the module that they need is imported, and keep their errors out of that import."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType

import wrapt

from arpo_verl.errors import PatchLostError

logger = logging.getLogger(__name__)

_failures: list[str] = []
"""What failed in this process, as `module: why`."""


def when_imported(module_name: str, register: Callable[[ModuleType], object]) -> None:
    """Call `register` with the module once it is imported, or now if it already is."""
    wrapt.register_post_import_hook(lambda module: attempt(module_name, lambda: register(module)), module_name)


def attempt(module_name: str, register: Callable[[], object]) -> None:
    """Call `register`. If it fails, log one line and go on: the process may belong to somebody else's run."""
    try:
        register()
    except Exception as error:
        failure = " ".join(f"{module_name}: {type(error).__name__}: {error}".split())
        if failure not in _failures:
            _failures.append(failure)
            logger.error("arpo_verl could not register with %s; run `arpo-verl doctor`", failure)


def require_registered(package: str) -> None:
    """Refuse to continue if something could not be registered with this package in this process.

    Raises:
        PatchLostError: names the modules, and what they lack.
    """
    if failed := [failure for failure in _failures if failure.startswith(package)]:
        raise PatchLostError(f"arpo_verl could not register with {'; '.join(failed)}; run `arpo-verl doctor`")
