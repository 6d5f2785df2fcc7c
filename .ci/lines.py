"""Count the lines of the package, the tests and a GPU run's path; fail if there are more than pyproject.toml allows.

The path is what a training run may load: the hooks, all that they import, inside of functions too, and what tables on
the way name by import path (`"arpo_verl.room.module:NAME"`), such as families, desktops and replay methods. Beside it
we print what each run must load, by imports outside of functions alone. `--modules` lists them, the largest first.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

LISTS_MODULES = "--modules" in sys.argv
ROOT = next((Path(word) for word in sys.argv[1:] if word != "--modules"), Path(__file__).parents[1])
PATH = "gpu_run"
HOOKS = ("agent_loop", "checkpoints", "dataset", "estimator", "sampler")
"""The modules of `plugin/` that veRL loads into a run."""
_IMPORT_PATH = re.compile(r"(arpo_verl(?:\.\w+)+):[\w.]+")


def lines_of(paths) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def file_of(module: str) -> Path:
    place = ROOT.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


@cache
def imports_of(module: str, may: bool) -> set[str]:
    """Return the package's modules that this one imports; `may` adds those of functions and of tables."""
    named = set(_named(ast.parse(file_of(module).read_bytes()), may))
    return {name for name in named if name.startswith("arpo_verl.") and file_of(name).is_file()}


def _named(node: ast.AST, may: bool) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                part = f"{child.module}.{alias.name}"
                yield part if file_of(part).is_file() else str(child.module)
        elif isinstance(child, ast.Constant) and may and (found := _IMPORT_PATH.fullmatch(str(child.value))):
            yield found[1]
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            pass
        elif may or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _named(child, may)


def gpu_run(may: bool) -> set[str]:
    """Return the modules that the hooks reach."""
    reached, left = set(), {f"arpo_verl.plugin.{hook}" for hook in HOOKS}
    while left:
        reached |= left
        left = {each for module in left for each in imports_of(module, may)} - reached
    return reached


status = 0
for name, most in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["arpo_verl"]["lines"].items():
    if name == PATH:
        must, may = gpu_run(may=False), gpu_run(may=True)
        lines = lines_of(map(file_of, may))
        print(
            f"{name}: may load {lines:,} lines of Python (at most {most:,}), must load {lines_of(map(file_of, must)):,}"
        )
        if LISTS_MODULES:
            for count, module in sorted(((lines_of([file_of(module)]), module) for module in may), reverse=True):
                print(f"{count:5} {'must' if module in must else 'may '} {module}")
    else:
        lines = lines_of((ROOT / name).rglob("*.py"))
        print(f"{name}: {lines:,} lines of Python (at most {most:,})")
    if lines > most:
        status = 1
        print(
            f"{name} is {lines - most:,} over its budget. Remove as many lines; or raise {name} in pyproject.toml, "
            "[tool.arpo_verl.lines], in a commit whose message says what for."
        )
sys.exit(status)
