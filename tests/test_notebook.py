"""docs/python_door.ipynb: its cells run in order, and give what is stored in it."""

import re

import pytest
from support import ROOT
from support.notebook import code_cells, read, run

pytest.importorskip("gymnasium")
pytest.importorskip("desktop_env")

NOTEBOOK = ROOT / "docs" / "python_door.ipynb"
# Another processor may choose other words for the small model.
VARIES = "varies"


def shapes(cell, outputs):
    """Texts as they are, or how many lines they have; of an image, that it is one."""
    varies = VARIES in cell["metadata"].get("tags", ())
    texts = ["".join(output["text"]) for output in outputs if "text" in output]
    images = ["image/png" in output["data"] for output in outputs if "data" in output]
    return [len(text.splitlines()) if varies else text for text in texts], images


@pytest.mark.desktop
@pytest.mark.release
def test_its_cells_give_what_is_stored_in_it():
    notebook = read(NOTEBOOK)
    for cell, outputs in zip(code_cells(notebook), run(notebook), strict=True):
        assert shapes(cell, outputs) == shapes(cell, cell["outputs"]), "".join(cell["source"])


def test_what_is_stored_is_small_and_of_no_machine():
    assert NOTEBOOK.stat().st_size < 400_000
    cells = code_cells(read(NOTEBOOK))
    images = [output for cell in cells for output in cell["outputs"] if "image/png" in output.get("data", {})]
    assert len(images) >= 3
    text = re.sub(r'"image/png": "[^"]*"', "", NOTEBOOK.read_text("utf-8"))
    assert not re.search(r"/(home|root|tmp|work)\b|0x[0-9a-f]{6}", text)
