"""A run's report: one HTML file that needs neither a network nor a script.

`arpo-verl report` calls `write_report`: `viewer/report/content.py: gather` asks the modules of its subjects (`success`,
`replay`, `costs`, `samples`) for their part of the run, and `viewer/report/page.py: render` makes HTML of it, with
`charts` and the template in `templates/`.
"""

from __future__ import annotations

from pathlib import Path

from arpo_verl.files import write_whole
from arpo_verl.records.run import Run
from arpo_verl.viewer.report.content import gather
from arpo_verl.viewer.report.page import render

__all__ = ["write_report"]


def write_report(run: Run, file: Path) -> int:
    """Write the report of a run, finished or not.

    Returns:
        The file's size in bytes.
    """
    content = render(gather(run)).encode("utf-8", errors="replace")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, content, sync=False)  # a link there is replaced, not followed
    return len(content)
