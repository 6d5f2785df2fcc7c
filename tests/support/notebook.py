"""A notebook run cell by cell, as Jupyter does, in one process and without Jupyter.

`python -m support.notebook PATH`, in tests/, stores the outputs in the notebook: those who only read it see them.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")
Cell = dict[str, Any]


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(notebook: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """The outputs of each code cell."""
    names: dict[str, Any] = {}
    for number, cell in enumerate(code_cells(notebook), 1):
        printed, value = _run("".join(cell["source"]), names)
        outputs: list[dict[str, Any]] = []
        if printed:
            outputs.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
        if value is not None:
            result = {"data": _shown(value), "execution_count": number, "metadata": {}}
            outputs.append({**result, "output_type": "execute_result"})
        yield outputs


def _run(source: str, names: dict[str, Any]) -> tuple[str, Any]:
    """What a cell prints, and the value of the expression that it ends with."""
    module, printed = ast.parse(source), io.StringIO()
    last = module.body[-1]
    if isinstance(last, ast.Expr):
        module.body[-1] = ast.Assign([ast.Name("_", ast.Store())], last.value)
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.fix_missing_locations(module), "cell", "exec"), names)
    return printed.getvalue(), names.pop("_", None)


def _shown(value: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"text/plain": [ADDRESS.sub("", repr(value))]}
    if hasattr(value, "_repr_png_"):
        shown["image/png"] = base64.b64encode(value._repr_png_()).decode() + "\n"
    return shown


def store(path: Path) -> None:
    notebook = read(path)
    for number, (cell, outputs) in enumerate(zip(code_cells(notebook), run(notebook), strict=True), 1):
        cell |= {"execution_count": number, "outputs": outputs}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    store(Path(sys.argv[1]))
