"""Scripted solutions of OSWorld tasks through the GUI: a module for each domain, each with `SOLUTIONS`, id -> solution.

The ids are here, in the tests' room, and nowhere in the library: nothing there knows one task from another.
"""

from __future__ import annotations

import importlib
import pkgutil

from support.osworld.harness import Solution


def all_solutions() -> dict[str, Solution]:
    """Every scripted solution by the task's full id."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return {task_id: solution for module in modules for task_id, solution in module.SOLUTIONS.items()}
