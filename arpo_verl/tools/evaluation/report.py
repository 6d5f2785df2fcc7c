"""Tables of an evaluation beside its episodes, for people and other programs, OSWorld's among them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from arpo_verl.lib.files import replacing_directory, write_whole
from arpo_verl.records.json_files import dump_json
from arpo_verl.records.layout import RESULTS_FILE
from arpo_verl.tools.evaluation.folder import EvaluationFolder
from arpo_verl.tools.evaluation.results import Result
from arpo_verl.tools.evaluation.tables import to_csv, to_json, to_markdown

MARKDOWN_FILE, CSV_FILE = "results.md", "results.csv"
OSWORLD_FOLDER = "osworld_results"
ACTION_SPACE, OBSERVATION_TYPE = "pyautogui", "screenshot"
"""OSWorld's names for how actions run and what the policy sees."""


def write_report(folder: Path) -> str:
    """Write the tables of an evaluation, finished or not, into its folder, each file whole or not at all.

    Returns:
        The tables, in Markdown.

    Raises:
        ConfigError: this is no evaluation's folder.
        OSError: a file cannot be written.
    """
    evaluated = EvaluationFolder(folder).read()
    tables = to_markdown(evaluated)
    write_whole(folder / MARKDOWN_FILE, tables.encode("utf-8", "backslashreplace"))
    write_whole(folder / CSV_FILE, to_csv(evaluated).encode("utf-8", "backslashreplace"))
    write_whole(folder / RESULTS_FILE, dump_json(to_json(evaluated)) + b"\n")
    with replacing_directory(folder / OSWORLD_FOLDER) as scratch:
        _write_osworld_results(scratch, evaluated.results, _model(evaluated.settings))
    return tables


def _model(settings: Mapping[str, Any]) -> str:
    """Return the last part of the model's name."""
    policy = settings.get("policy")
    model = policy.get("model") if isinstance(policy, Mapping) else None
    return str(model or "policy").rstrip("/").rpartition("/")[2] or "policy"


def _write_osworld_results(root: Path, results: Iterable[Result], model: str) -> None:
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
