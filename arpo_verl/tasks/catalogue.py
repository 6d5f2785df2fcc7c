"""The catalogue has the names that the installed OSWorld client knows (set-up steps, getters, metrics), and our own
ones for bundles. We read them from its source: an import takes seconds and loads OpenCV, pandas and Playwright."""

from __future__ import annotations

import ast
import importlib.util
import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from arpo_verl.environments.osworld.bundle_steps import REWARD_PROGRAM, STEPS

logger = logging.getLogger(__name__)

# These methods of the client only raise NotImplementedError.
_UNWRITTEN_STEPS = {"tidy_desktop", "act", "replay"}


@dataclass(frozen=True)
class Catalogue:
    """A task file may use these names."""

    setup_steps: frozenset[str]
    getters: frozenset[str]
    metrics: frozenset[str]


@lru_cache(maxsize=1)
def installed_catalogue() -> Catalogue | None:
    """Return the names of the installed OSWorld client; None without one (only the workers' Python may have it)."""
    spec = importlib.util.find_spec("desktop_env")
    if spec is None or spec.origin is None:
        logger.info("desktop-env is not installed here, so the names of steps, getters and metrics are not checked")
        return None
    root = Path(spec.origin).parent
    methods = _names(root / "controllers" / "setup.py")
    steps = {name[1:-6] for name in methods if name.startswith("_") and name.endswith("_setup")}
    getters = {n.removeprefix("get_") for n in _names(root / "evaluators/getters/__init__.py") if n.startswith("get_")}
    metrics = _names(root / "evaluators" / "metrics" / "__init__.py")
    return Catalogue(
        frozenset(steps - _UNWRITTEN_STEPS) | {*STEPS},
        frozenset(getters) | {REWARD_PROGRAM},
        frozenset(metrics) | {REWARD_PROGRAM},
    )


def _names(path: Path) -> set[str]:
    """Return every function, method and imported name of a source file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return names
