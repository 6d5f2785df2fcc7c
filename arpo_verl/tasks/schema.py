"""This checks that an OSWorld task has the form that the client needs. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from arpo_verl.config import did_you_mean
from arpo_verl.tasks.catalogue import Catalogue

INFEASIBLE = "infeasible"

# The client makes a folder with this name, so it must not lead elsewhere.
_TASK_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def problems_of(spec: Any, catalogue: Catalogue | None) -> list[str]:
    """Return everything that is wrong with a task's JSON; with a catalogue it also checks names."""
    if not isinstance(spec, Mapping):
        return [f"a task must be a JSON object, got {type(spec).__name__}"]
    missing = [key for key in ("id", "instruction", "evaluator") if key not in spec]
    if missing:
        return [f"a task must have id, instruction and evaluator; {', '.join(missing)} missing"]
    problems = []
    if not isinstance(spec["id"], str) or not _TASK_ID.fullmatch(spec["id"]):
        problems.append(f"id must be letters, digits, '.', '_' and '-', got {spec['id']!r:.80}")
    if not isinstance(spec["instruction"], str) or not spec["instruction"].strip():
        problems.append(f"instruction must be text, got {spec['instruction']!r:.80}")
    problems.extend(_step_problems(spec.get("config", []), "config", catalogue))
    problems.extend(_evaluator_problems(spec["evaluator"], catalogue))
    return problems


def _step_problems(steps: Any, where: str, catalogue: Catalogue | None) -> Iterator[str]:
    if not isinstance(steps, list):
        yield f"{where} must be a list of steps, got {type(steps).__name__}"
        return
    for number, step in enumerate(steps):
        if not isinstance(step, Mapping) or not isinstance(step.get("parameters"), Mapping) or "type" not in step:
            yield f"{where}[{number}] must be an object with type and parameters, got {step!r:.80}"
        else:
            known = catalogue.setup_steps if catalogue else None
            yield from _unknown(step["type"], known, f"{where}[{number}].type", "set-up step")


def _evaluator_problems(evaluator: Any, catalogue: Catalogue | None) -> Iterator[str]:
    if not isinstance(evaluator, Mapping) or "func" not in evaluator:
        yield f"evaluator must be an object with func, got {evaluator!r:.80}"
        return
    yield from _step_problems(evaluator.get("postconfig", []), "evaluator.postconfig", catalogue)
    func = evaluator["func"]
    if func == INFEASIBLE:
        return
    funcs = func if isinstance(func, list) else [func]
    for name in funcs:
        yield from _unknown(name, catalogue.metrics if catalogue else None, "evaluator.func", "metric")
    if not evaluator.get("result"):
        yield "evaluator.result is missing: it must say what the metric reads"
    if evaluator.get("conj", "and") not in ("and", "or"):
        yield f"evaluator.conj must be 'and' or 'or', got {evaluator['conj']!r:.80}"
    for key in ("result", "expected", "options"):
        yield from _part_problems(evaluator.get(key), f"evaluator.{key}", func, catalogue)


def _part_problems(part: Any, where: str, func: Any, catalogue: Catalogue | None) -> Iterator[str]:
    """Check a metric's `result`, `expected` or `options`: one for one metric, or a list for a list of metrics."""
    if not part:
        return
    if isinstance(func, list) and (not isinstance(part, list) or len(part) != len(func)):
        yield f"{where} must be a list of {len(func)}, one for each metric of evaluator.func"
        return
    if where == "evaluator.options":
        return
    for getter in part if isinstance(part, list) else [part]:
        if not getter and where == "evaluator.expected":
            continue
        if not isinstance(getter, Mapping) or "type" not in getter:
            yield f"{where} must be an object with a getter's type, got {getter!r:.80}"
        else:
            yield from _unknown(getter["type"], catalogue.getters if catalogue else None, f"{where}.type", "getter")


def _unknown(name: Any, known: Collection[str] | None, where: str, what: str) -> Iterator[str]:
    if not isinstance(name, str):
        yield f"{where} must be the name of a {what}, got {name!r:.80}"
    elif known is not None and name not in known:
        hint = did_you_mean(name[:80], known)
        yield f"{where} names the {what} {name[:80]!r}, which the installed desktop-env does not have{hint}"
