"""OSWorld's domains `libreoffice_*`: menus and hotkeys of the three programs."""

from __future__ import annotations

from support.osworld.harness import Box, Operator, Solution

TREE = "/usr/bin/python3 -I /opt/arpo/arpo_guest/atspi_tree.py"
"""Prints the accessible objects. For looking only."""


def _ready(operator: Operator, title: str) -> None:
    operator.await_window(title)
    operator.await_still()


def _choose(operator: Operator, menu: tuple[int, int], item: tuple[int, int], box: Box) -> None:
    """An item of a menu, both by the mouse; `box` lies in the open menu."""
    operator.click(*menu)
    operator.await_change(box)
    operator.click(*item)


def show_slide_panel(operator: Operator) -> None:
    """View > Slide Pane."""
    _ready(operator, "LibreOffice Impress")
    _choose(operator, (103, 31), (140, 308), (150, 60, 370, 300))
    operator.await_output(
        "/usr/bin/python3 -I /opt/arpo/arpo_guest/atspi_tree.py | grep -o 'Slides View'", "Slides View"
    )


def center_heading(operator: Operator) -> None:
    """The caret to the top, and Ctrl+E."""
    _ready(operator, "LibreOffice Writer")
    operator.press("ctrl", "home")
    operator.press("ctrl", "e")
    operator.await_change()


def export_csv(operator: Operator) -> None:
    """Save under a name that ends with .csv; the program's dialog of options is confirmed as it is."""
    _ready(operator, "LibreOffice Calc")
    operator.press("ctrl", "shift", "s")
    _ready(operator, "Save")
    operator.press("ctrl", "a")
    operator.type("Export_Calc_to_CSV.csv\n")
    _ready(operator, "Export Text File")
    operator.type("\n")
    operator.await_output("ls -s ~/*.csv", "4 /home/user/Export_Calc_to_CSV.csv")


def portrait_slides(operator: Operator) -> None:
    """Slide > Slide Properties > Portrait > OK."""
    _ready(operator, "LibreOffice Impress")
    operator.await_output(f"{TREE} | grep -o 'Slides View'", "Slides View")
    operator.await_still()
    _choose(operator, (266, 31), (328, 232), (330, 60, 550, 560))
    _ready(operator, "Slide Properties")
    operator.click(670, 462)
    operator.click(1321, 847)
    operator.await_no_window("Slide Properties")
    operator.await_still()


SOLUTIONS: dict[str, Solution] = {"ef9d12bd-bcee-4ba0-a40e-918400f43ddf": show_slide_panel}

WITH_DOCUMENTS_OF_OUR_OWN: dict[str, Solution] = {
    "libreoffice_calc/3aaa4e37-dc91-482e-99af-132a612d40f3": export_csv,
    "libreoffice_impress/ce88f674-ab7a-43da-9201-468d38539e4a": portrait_slides,
    "libreoffice_writer/3ef2b351-8a84-4ff2-8724-d86eae9b842e": center_heading,
}
"""Tasks that download a document, on one of `documents`."""
