"""Report problems of this host that OSWorld's getters, metrics and controllers catch.

They catch every exception and return None, a default or 0, so a full disk or a missing package looks like a policy that
failed. So we load their modules with one more call at the head of each `except`, which shows us the exception. The
files stay as they are, and so does what the code does.
"""

from __future__ import annotations

import ast
import errno
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from arpo_verl.desktops.osworld.calls import log

PACKAGES = ("desktop_env.evaluators.", "desktop_env.controllers.")
_NAME = "_arpo_verl_note_swallowed"

_HOST_ERRORS = {
    errno.ENOSPC: "disk",
    errno.EDQUOT: "disk",
    errno.EIO: "disk",
    errno.EROFS: "disk",
    errno.EMFILE: "files",
    errno.ENFILE: "files",
    errno.ENOMEM: "memory",
}
# Raised for a program that is not installed: by audioread, pdf2image, pytesseract.
_PROGRAM_ERRORS = ("NoBackendError", "PDFInfoNotInstalledError", "TesseractNotFoundError")
_SERVICES = ("pydrive", "googleapiclient", "httplib2", "oauth2client")


@dataclass(frozen=True)
class Swallowed:
    """A caught exception that this host, or a service behind it, caused."""

    kind: str
    """`disk`, `files`, `memory`, `package`, `program` or `service`."""
    error: str
    name: str = ""
    """The name of the package or the program."""
    file: str = ""
    """`package`: the file that wanted to import it."""


def classify(error: BaseException) -> Swallowed | None:
    """Return the problem of this host behind an exception or its causes; None if there is none."""
    for one in _chain(error):
        kind, name, file = "", "", ""
        if isinstance(one, MemoryError):
            kind = "memory"
        elif isinstance(one, ImportError):
            kind, name, file = "package", (one.name or "").partition(".")[0], _importer_of(one)
        elif isinstance(one, OSError) and one.errno in _HOST_ERRORS:
            kind = _HOST_ERRORS[one.errno]
        elif isinstance(one, (FileNotFoundError, PermissionError)) and _files_of(one)[-1:] == [subprocess.__file__]:
            kind, name = "program", str(one.filename)
        elif type(one).__name__ in _PROGRAM_ERRORS:
            kind, name = "program", type(one).__name__
        elif type(one).__module__.partition(".")[0] in _SERVICES:
            kind, name = "service", type(one).__module__.partition(".")[0]
        if kind:
            return Swallowed(kind, f"{type(one).__name__}: {one}"[:300], name, file)
    return None


def _note() -> None:
    """Note the exception; every `except` of the client's calls this first."""
    error = sys.exc_info()[1]
    found = None if error is None else classify(error)
    if found is not None:
        log.swallowed.append(found)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def _files_of(error: BaseException) -> list[str]:
    return [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]


def _importer_of(error: BaseException) -> str:
    """Return the innermost file that is not part of the import system."""
    files = [file for file in _files_of(error) if not file.startswith("<frozen importlib") and "importlib" not in file]
    return files[-1] if files else ""


class NotingFinder(MetaPathFinder):
    """Loads the client's getters, metrics and controllers so that they report what they catch."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PACKAGES):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _NotingLoader(fullname, spec.loader.path)
        return spec


class _NotingLoader(SourceFileLoader):
    def path_stats(self, path: str) -> Any:
        raise OSError("the compiled code differs from the file, so no cache is read or written")

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        tree = ast.fix_missing_locations(_Noting().visit(ast.parse(data, path)))
        code: CodeType = compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)
        return code

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[_NAME] = _note
        super().exec_module(module)


class _Noting(ast.NodeTransformer):
    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        call = ast.Expr(ast.Call(ast.Name(_NAME, ast.Load()), [], []))
        node.body.insert(0, ast.copy_location(call, node.body[0]))
        return node
