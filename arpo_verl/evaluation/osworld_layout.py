"""This writes results as OSWorld's runners do, for its `show_result.py` and other tools that read this layout."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from arpo_verl.evaluation.results import Result

ACTION_SPACE, OBSERVATION_TYPE = "pyautogui", "screenshot"
"""OSWorld's names for how actions run and what the policy sees."""


def write_osworld_results(root: Path, results: Iterable[Result], model: str) -> None:
    """Write `root/max_steps_<budget>/run_<run>/<action space>/<observation type>/<model>/<domain>/<task>/result.txt`.

    OSWorld has one run at one budget: each `run_<run>` is a `result_dir` of its runners. A run that was lost to
    infrastructure failures has no file, like one that was never played.

    Raises:
        OSError: a file cannot be written.

    Source: xlang-ai/OSWorld, `show_result.py`: it averages the numbers in `result.txt`, by folder of a domain.
    """
    for result in results:
        run = root / f"max_steps_{result.budget}" / f"run_{result.run}"
        place = run / ACTION_SPACE / OBSERVATION_TYPE / folder_name(model) / folder_name(result.domain or "other")
        folder = place / folder_name(result.task_id)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.txt").write_text(f"{result.success}\n", encoding="ascii")


def folder_name(text: str) -> str:
    """Make a folder's name from any text, different for each text."""
    plain = re.sub(r"^\.", "_", re.sub(r"[^\w.-]", "_", text, flags=re.ASCII)[:80])
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return plain if plain == text else f"{plain}-{digest}"
