"""Find a module by the name that it had before the package got its rooms: in imports, pickles, recipes, `python -m`.

Also an entry point of an installation in place that is older than its checkout. `NEW_NAMES` is the table; the module is
the same object under both names.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

_PACKAGE = "arpo_verl"
_ROOMS = {
    "agent": "actions harness models rollout",
    "desktops": "pool vm",
    "engines": "cpu footprint pixels upstream_patches",
    "lib": "config files images intervals own_ray post_import reaper removed_options run_marker untrusted",
    "tools": "cli evaluation migration policy viewer",
}
NEW_NAMES = {name: f"{room}.{name}" for room, names in _ROOMS.items() for name in names.split()} | {
    "desktop": "desktops.embedded",
    "desktop.machine_provider": "desktops.machine_provider",
    "desktops.embedded.machine_provider": "desktops.machine_provider",
    "environments": "desktops",
    "harness.recorded": "records.harness_rows",
    "memory_files": "engines.vllm.memory_files",
    "policy.optimizer": "engines.optimizer",
    "records.faults": "records.ended_starts",
    "records.metrics": "records.metrics_files",
    "replay.choice": "replay.groups",
    "vllm_images": "engines.vllm.images",
    "vllm_segments": "engines.vllm.segments",
}
"""Where the modules and folders of the package are now, by their old names. The longest name that fits decides."""


def new_name(name: str) -> str | None:
    """Return the name that a module has now; None if `name` is not an old one."""
    package, *parts = name.split(".")
    for end in range(len(parts), 0, -1) if package == _PACKAGE else ():
        if new := NEW_NAMES.get(".".join(parts[:end])):
            return ".".join([package, new, *parts[end:]])
    return None


class OldNames:
    """Finds the modules of `NEW_NAMES`, for `sys.meta_path`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return how to import `name` if it is an old name."""
        new = new_name(name)
        found = new and importlib.util.find_spec(new)
        if not found:
            return None
        is_package = found.submodule_search_locations is not None
        loader: Any = _SameModule(found)  # no subclass of `Loader`: to import that takes longer than all the rest
        return ModuleSpec(name, loader, origin=found.origin, is_package=is_package)


class _SameModule:
    def __init__(self, found: ModuleSpec) -> None:
        self._found = found

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return importlib.import_module(self._found.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._found  # the import by the old name has replaced it

    def get_code(self, name: str) -> CodeType | None:
        """Return the module's code, for `python -m`."""
        code: CodeType | None = self._found.loader.get_code(self._found.name)  # type: ignore[union-attr]
        return code


def install() -> None:
    """Let this process find old names. They come first: an old folder may be left, with nothing but bytecode in it."""
    sys.meta_path.insert(0, OldNames)
