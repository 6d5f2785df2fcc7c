"""This writes an evaluation's tables, for people and other programs, beside its episodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arpo_verl.evaluation.folder import EvaluationFolder
from arpo_verl.evaluation.osworld_layout import write_osworld_results
from arpo_verl.evaluation.tables import to_csv, to_json, to_markdown, to_text
from arpo_verl.files import replacing_directory, write_whole
from arpo_verl.records.json_files import dump_json
from arpo_verl.records.layout import RESULTS_FILE

MARKDOWN_FILE, CSV_FILE = "results.md", "results.csv"
OSWORLD_FOLDER = "osworld_results"


def write_report(folder: Path) -> str:
    """Write the tables of an evaluation, finished or not, into its folder, each file whole or not at all.

    Returns:
        The tables for a terminal.

    Raises:
        ConfigError: this is no evaluation's folder.
        OSError: a file cannot be written.
    """
    evaluated = EvaluationFolder(folder).read()
    write_whole(folder / MARKDOWN_FILE, to_markdown(evaluated).encode("utf-8", "backslashreplace"))
    write_whole(folder / CSV_FILE, to_csv(evaluated).encode("utf-8", "backslashreplace"))
    write_whole(folder / RESULTS_FILE, dump_json(to_json(evaluated)) + b"\n")
    with replacing_directory(folder / OSWORLD_FOLDER) as scratch:
        write_osworld_results(scratch, evaluated.results, _model(evaluated.settings))
    return to_text(evaluated)


def _model(settings: Mapping[str, Any]) -> str:
    """Return the last part of the model's name."""
    policy = settings.get("policy")
    model = policy.get("model") if isinstance(policy, Mapping) else None
    return str(model or "policy").rstrip("/").rpartition("/")[2] or "policy"
