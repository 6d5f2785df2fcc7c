"""Read task files: one file, a folder, an index in OSWorld's layout, or a shipped suite."""

from __future__ import annotations

import json
import logging
import os
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arpo_verl.errors import TaskError
from arpo_verl.lib.config import did_you_mean
from arpo_verl.lib.untrusted import MOST_DIGITS, MOST_JSON_BYTES, parse_json, printable, read_text
from arpo_verl.tasks.catalogue import installed_catalogue
from arpo_verl.tasks.schema import problems_of
from arpo_verl.tasks.sources import source_tasks, split_source
from arpo_verl.types import Task

logger = logging.getLogger(__name__)

EMBEDDED = "embedded"
EMBEDDED_DIR = Path(__file__).with_name("embedded")
EMBEDDED_LONG = "embedded_long"

# A message names so many bad tasks and counts the rest.
MAX_NAMED_PROBLEMS = 20

TaskPath = str | os.PathLike[str]

_REMEDY = "export its tasks in OSWorld's format as JSON, or their ids as text, one a line"
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test"}
# Lists that we do not read, by their ending.
_OTHERS = dict.fromkeys((".csv", ".tsv", ".xlsx"), "a table") | dict.fromkeys((".gz", ".zip", ".zst"), "an archive")
_OTHERS |= {".parquet": "a Parquet file", ".arrow": "an Arrow file"}

SUITES: Mapping[TaskPath, Path] = {EMBEDDED: EMBEDDED_DIR, EMBEDDED_LONG: EMBEDDED_DIR.with_name(EMBEDDED_LONG)}
"""The shipped suites' folders, by the names that you can use instead of a path."""


@dataclass(frozen=True)
class TaskProblem:
    """We cannot use this task: where it was named, and why."""

    where: str
    what: str
    missing: bool = False
    """Whether an index names it, but it has no file."""
    unread: bool = False
    """Whether this is an unreadable file of tasks: since we do not know its tasks, we never leave it out."""


@dataclass(frozen=True)
class _Found:
    """A task file's place, or its content if the file has several tasks."""

    where: str
    path: Path | None = None
    folder: Path | None = None
    """The folder that the path must not leave, whatever someone's index or link says."""
    spec: Any = None
    domain: str = ""
    """The domain, if no folder names it."""


def load_tasks(
    path: TaskPath | Iterable[TaskPath], *, skip_missing: bool = False, skip_unusable: bool = False
) -> list[Task]:
    """Read and check tasks, in the order of the files.

    Args:
        path: one of
            `embedded`: the shipped suite for the embedded desktop;
            `embedded_long`: its long tasks, of 17 to 33 turns;
            a task's JSON file, or a JSON list of tasks;
            a folder: OSWorld's (`test_all.json` beside `examples/`), or any with task files in it or below it;
            an index such as OSWorld's `test_all.json` or `test_small.json`, `{domain: [ids]}`, beside
            `examples/<domain>/<id>.json`;
            `NAME:ARGUMENT`, a source of tasks: `cua_gym:FOLDER`, `families:SPLIT:COUNT` or a package's own; see
            `tasks/sources.py`;
            your own list there: a JSON list of ids, or a .txt file with one id a line, where `#` begins a comment. An
            id can be `<domain>/<id>`, the file's path, or an object with `domain` and `example_id`;
            a .jsonl file, with an id or a task a line;
            several of these: a list, or a string with commas.
        skip_missing: leave out tasks that an index names but that have no file, instead of raising.
        skip_unusable: leave out tasks that the installed OSWorld client cannot run or that are malformed.

    Raises:
        TaskError: names every task that cannot be used, and why.
    """
    found = list(scan_tasks(path))
    tasks = [one for one in found if isinstance(one, Task)]
    problems = [one for one in found if isinstance(one, TaskProblem)]
    _settle_problems(problems, len(tasks), skip_missing, skip_unusable)
    if not tasks:
        raise TaskError(f"{_shown(path)} has no task; name a task file, folder or index")
    return tasks


def shipped_file(task_id: str) -> Path | None:
    """Return the file of a shipped task; None if no suite has it."""
    return next((file for folder in SUITES.values() for file in folder.glob("*.json") if file.stem == task_id), None)


def shipped_ids() -> list[str]:
    """Return the ids of all shipped tasks."""
    return sorted(file.stem for folder in SUITES.values() for file in folder.glob("*.json"))


def scan_tasks(path: TaskPath | Iterable[TaskPath]) -> Iterator[Task | TaskProblem]:
    """Yield every task that `load_tasks` would read, or what is wrong with it.

    Raises:
        TaskError: there is nothing at `path`.
    """
    origin: dict[str, str] = {}
    for found in _find_all(path):
        loaded = found if isinstance(found, TaskProblem) else _load_one(found)
        if isinstance(loaded, Task) and loaded.task_id in origin:
            what = f"{origin[loaded.task_id]} has the id {loaded.task_id} too; name each task once"
            yield TaskProblem(found.where, what)
            continue
        if isinstance(loaded, Task):
            origin[loaded.task_id] = found.where
        yield loaded


def _settle_problems(problems: list[TaskProblem], good: int, skip_missing: bool, skip_unusable: bool) -> None:
    fatal = [p for p in problems if p.unread or not (skip_missing if p.missing else skip_unusable)]
    if len(problems) > len(fatal):
        logger.warning("we leave out %d tasks: missing, malformed or unknown here", len(problems) - len(fatal))
    if not fatal:
        return
    named = "\n".join(f"  {printable(p.where)[:400]}: {printable(p.what)[:2000]}" for p in fatal[:MAX_NAMED_PROBLEMS])
    rest = f"\n  and {len(fatal) - MAX_NAMED_PROBLEMS} more" if len(fatal) > MAX_NAMED_PROBLEMS else ""
    missing = any(p.missing for p in fatal)
    remedy = "; data.tasks.skip_missing=true leaves out those without a file" if missing else ""
    raise TaskError(f"{len(fatal)} of {len(problems) + good} tasks cannot be used{remedy}:\n{named}{rest}")


def _find_all(path: TaskPath | Iterable[TaskPath]) -> Iterator[_Found | TaskProblem]:
    paths = list(_paths(path))
    absent = [str(one) for one in paths if isinstance(one, Path) and not one.exists()]
    if absent:
        raise TaskError(
            f"{', '.join(absent)} must be a task file, a folder of task files, NAME:ARGUMENT or one of "
            f"{', '.join(map(str, SUITES))}, got a path that does not exist (seen from {Path.cwd()})"
            f"{did_you_mean(absent[0], map(str, SUITES))}"
        )
    for one in paths:
        if isinstance(one, Path):
            yield from _find(one)
        else:
            yield from (_Found(where, spec=spec, domain=domain) for where, spec, domain in source_tasks(*one))


def _paths(path: TaskPath | Iterable[TaskPath]) -> Iterator[Path | tuple[str, str]]:
    """Yield files and folders, and sources by name and argument."""
    if path == "" or not isinstance(path, (str, os.PathLike, Iterable)):
        raise TaskError(f"name a task file, a folder of task files or {EMBEDDED!r}, not {path!r}")
    if not isinstance(path, (str, os.PathLike)):
        for one in path:
            yield from _paths(one)
    elif isinstance(path, str) and "," in path and not Path(path).exists():
        for one in path.split(","):
            yield from _paths(one.strip())
    else:
        yield split_source(path) or SUITES.get(path) or Path(path).expanduser()


def _find(path: Path) -> Iterator[_Found | TaskProblem]:
    if path.is_dir():
        index = path / "test_all.json"
        files = sorted(path.rglob("*.json"))
        if index.is_file() and (path / "examples").is_dir():
            yield from _find(index)
        elif any(file.name == "dataset_info.json" for file in files) or (not files and any(path.rglob("*.parquet"))):
            yield TaskProblem(str(path), f"looks like a data set of Hugging Face's; {_REMEDY}", unread=True)
        else:
            yield from (_Found(str(file), file, path) for file in files)
        return
    content = _read(path)
    references = [_reference(item) for item in content] if isinstance(content, list) else []
    if isinstance(content, TaskProblem):
        yield replace(content, unread=True)
    elif isinstance(content, list) and not all(references):
        yield from (_Found(f"{path}[{number}]", spec=item) for number, item in enumerate(content))
    elif isinstance(content, list):
        yield from _find_indexed(path, references)
    elif isinstance(content, Mapping) and content and content.keys() <= _SPLITS and not _has_domain(path, content):
        what = f"has the splits {', '.join(content)}; write the list of each into a file of its own"
        yield TaskProblem(str(path), what, unread=True)
    elif isinstance(content, Mapping):
        yield from _find_indexed(path, content) if _is_index(content) else [_Found(str(path), spec=content)]
    else:
        yield TaskProblem(str(path), f"must hold a task, tasks or ids, got {type(content).__name__}", unread=True)


def _has_domain(path: Path, content: Mapping[str, Any]) -> bool:
    return any((path.parent / "examples" / domain).is_dir() for domain in content)


def _is_index(content: Mapping[str, Any]) -> bool:
    """Return whether this is `{domain: [ids]}`: every value is a list of strings, and no key is a task's own."""
    lists = all(isinstance(ids, list) and all(isinstance(i, str) for i in ids) for ids in content.values())
    return bool(content) and lists and not {"id", "evaluator"} & set(content)


def _reference(item: Any) -> str:
    """Return `<domain>/<id>` or `<id>` if an item of a list names a task; "" if it does not."""
    if isinstance(item, Mapping) and not {"evaluator", "instruction"} & item.keys():
        task_id = next((item[key] for key in ("example_id", "task_id", "id") if key in item), "")
        item = f"{item['domain']}/{task_id}" if "domain" in item else task_id
    return "/".join(Path(item.removesuffix(".json")).parts[-2:]) if isinstance(item, str) else ""


def _find_indexed(path: Path, content: Mapping[str, list[str]] | list[str]) -> Iterator[_Found]:
    examples = path.parent / "examples"
    if isinstance(content, list):
        by_id = {file.stem: file for file in examples.glob("*/*.json")}
        files = {i: by_id.get(i, examples / ("" if "/" in i else "*") / f"{i}.json") for i in content}
        yield from (_Found(f"{path.name} names {i}", files[i], examples) for i in content)
        return
    for domain, references in content.items():
        ids = [one.removesuffix(".json").removeprefix(f"{domain}/") for one in references]
        yield from (_Found(f"{path.name} names {domain}/{i}", examples / domain / f"{i}.json", examples) for i in ids)


def _is_within(path: Path, folder: Path | None) -> bool:
    return folder is None or os.path.realpath(path).startswith(f"{os.path.realpath(folder)}{os.sep}")


def _load_one(found: _Found) -> Task | TaskProblem:
    spec = found.spec
    if found.path is not None:
        if not os.path.isfile(found.path):
            is_here = found.folder is None or found.folder.is_dir()
            remedy = "" if is_here else "; put the list beside the folder `examples` with the task files"
            return TaskProblem(found.where, f"there is no file {found.path}{remedy}", missing=True)
        if not _is_within(found.path, found.folder):
            what = f"{found.path} leads out of {found.folder}; copy the task itself into the folder"
            return TaskProblem(found.where, what)
        spec = _read(found.path)
        if isinstance(spec, TaskProblem):
            return spec
    if isinstance(spec, TaskError):
        return TaskProblem(found.where, str(spec))
    where = found.where if found.path is None else str(found.path)
    problems = problems_of(spec, installed_catalogue())
    if problems:
        named = f" (task {spec['id']})" if isinstance(spec, Mapping) and isinstance(spec.get("id"), str) else ""
        return TaskProblem(f"{where:.300}{named:.100}", "; ".join(dict.fromkeys(problems)))
    domain = found.domain if found.path is None else found.path.parent.name
    return Task(task_id=spec["id"], instruction=spec["instruction"], spec=spec, domain=domain, where=where)


def _read(path: Path) -> Any:
    """Return a file's JSON; of a .txt the ids, of a .jsonl its lines' JSON, with a `TaskError` for a broken line."""
    suffix = path.suffix.lower()
    if suffix in _OTHERS:
        return TaskProblem(str(path), f"looks like {_OTHERS[suffix]}; {_REMEDY}")
    try:
        text = read_text(path, MOST_JSON_BYTES).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        is_utf_16 = error.object[:2] in (BOM_UTF16_LE, BOM_UTF16_BE)
        return TaskProblem(str(path), f"not UTF-8 text: {'it looks like UTF-16' if is_utf_16 else error}")
    except OSError as error:
        return TaskProblem(str(path), f"not readable: {error}")
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return TaskProblem(str(path), "is empty")
    if suffix == ".txt":
        return [name for line in lines if (name := line.partition("#")[0].strip())]
    if suffix in (".jsonl", ".ndjson"):
        return [_parsed(line) for line in lines]
    content = _parsed(text)
    return TaskProblem(str(path), str(content)) if isinstance(content, TaskError) else content


def _parsed(text: str) -> Any:
    try:
        return parse_json(text, _refuse_number, unique_keys=True)
    except json.JSONDecodeError as error:
        hint = "; a file with a task a line needs the ending .jsonl" if error.msg == "Extra data" else ""
        return TaskError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}{hint}")
    except ValueError as error:
        return TaskError(f"not JSON that we read: {error}")


def _refuse_number(digits: str) -> Any:
    raise ValueError(f"{digits:.30} must be a finite number of at most {MOST_DIGITS} digits")


def _shown(path: TaskPath | Iterable[TaskPath]) -> str:
    return str(path) if isinstance(path, (str, os.PathLike)) else ", ".join(str(one) for one in path)
