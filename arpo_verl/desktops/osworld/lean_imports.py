"""Import the OSWorld client without the heavy packages that only few of its metrics use.

The client imports all its metrics, and with them easyocr (and torch), librosa, PyMuPDF and more. That costs 100 MB and
seconds in every worker, and the import fails if one of them is absent. Here a stand-in replaces each package until a
metric calls into it; then we import the real package, or the error says which to install.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from arpo_verl.desktops.osworld.calls import log
from arpo_verl.desktops.osworld.swallowed import NotingFinder
from arpo_verl.errors import MissingDependencyError
from arpo_verl.versions import pip_install

# Module -> what to pip install for it. Only a few metrics or set-up steps use each.
DEFERRED = {
    "acoustid": "pyacoustid",
    "borb": "borb<3",
    "easyocr": "easyocr",
    "fastdtw": "fastdtw",
    "fitz": "pymupdf<1.27",
    "formulas": "formulas",
    "librosa": "librosa",
    "pydrive": "pydrive",
}


@contextlib.contextmanager
def deferred_imports() -> Iterator[None]:
    """In this block and thread, the import of a deferred package that is not loaded yet returns its stand-in.

    Modules of the client that are imported here report what they catch, see `swallowed`.
    """
    finders = [_Finder(threading.get_ident()), NotingFinder()]
    sys.meta_path[:0] = finders
    try:
        yield
    finally:
        for finder in finders:
            sys.meta_path.remove(finder)
        # From now on an import returns the real package; the client keeps the stand-ins it has.
        for name, module in list(sys.modules.items()):
            if isinstance(module, _DeferredModule):
                del sys.modules[name]


class _Finder(MetaPathFinder, Loader):
    def __init__(self, thread: int):
        self._thread = thread

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        ours = fullname.partition(".")[0] in DEFERRED and threading.get_ident() == self._thread
        return ModuleSpec(fullname, self, is_package=True) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _DeferredModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the stand-in is complete."""


class _DeferredModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Deferred(self.__name__, (name,))


class _Deferred:
    """Stands for a name of a deferred package; a call imports the real one."""

    def __init__(self, module: str, path: tuple[str, ...]):
        self._module = module
        self._path = path

    def __getattr__(self, name: str) -> _Deferred:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Deferred(self._module, (*self._path, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value: Any = _import(self._module)
        for name in self._path:
            value = getattr(value, name)
        return value(*args, **kwargs)


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        log.missing.append(root)
        raise MissingDependencyError(
            f"this task's evaluator or set-up needs the package {root}: {pip_install(DEFERRED[root])}"
        ) from error
