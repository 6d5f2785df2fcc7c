"""Check that an OSWorld task has the form that the client needs, with arguments that its functions take. Pure."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from arpo_verl.lib.config import did_you_mean
from arpo_verl.tasks.catalogue import Catalogue, Uses
from arpo_verl.tasks.signatures import KINDS, LIST, NUMBER, OBJECT, TEXT, Use
from arpo_verl.types import REWARD_PROGRAM

INFEASIBLE = "infeasible"

# The client makes a folder with this name, so it must not lead elsewhere.
_TASK_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_MISSPELT = 0.8
"""Least likeness of two names: `config_note` or `operation` are a task's own."""
_TEXT = Use(frozenset({TEXT}))
_APPS = Use(frozenset({LIST, KINDS["NoneType"]}), items=_TEXT)
_PROGRAM = Use(frozenset({OBJECT}), {"type": _TEXT, "program": _TEXT}, frozenset({"type", "program"}))


def problems_of(spec: Any, catalogue: Catalogue | None) -> list[str]:
    """Return everything that is wrong with a task's JSON; with a catalogue it also checks names and arguments."""
    if not isinstance(spec, Mapping):
        return [f"a task must be a JSON object, got {type(spec).__name__}"]
    missing = [key for key in ("id", "instruction", "evaluator") if key not in spec]
    if missing:
        return [f"a task must have id, instruction and evaluator; {', '.join(missing)} missing"]
    problems = []
    if not isinstance(spec["id"], str) or not _TASK_ID.fullmatch(spec["id"]):
        problems.append(f"id must be letters, digits, '.', '_' and '-', at most 200, got {spec['id']!r:.80}")
    if not isinstance(spec["instruction"], str) or not spec["instruction"].strip():
        problems.append(f"instruction must be text, got {spec['instruction']!r:.80}")
    try:
        json.dumps(spec, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        problems.append(f"it has half of a character, {error.object[error.start : error.end]!r}; write the whole one")
    problems.extend(_misspelt(spec, ("config",), ""))
    problems.extend(_misuses(spec.get("related_apps"), _APPS, "related_apps"))
    problems.extend(_step_problems(spec.get("config", []), "config", catalogue))
    problems.extend(_evaluator_problems(spec["evaluator"], catalogue))
    return problems


def _misspelt(fields: Mapping[str, Any], optional: tuple[str, ...], where: str) -> Iterator[str]:
    """Yield fields whose names look like an optional one that is not there, which would silently be left out."""
    absent = [name for name in optional if name not in fields]
    for name in fields:
        if close := difflib.get_close_matches(name[:80], absent, 1, _MISSPELT):
            yield f"{where}{name:.80} is no field of a task; did you mean {close[0]}?"


def _step_problems(steps: Any, where: str, catalogue: Catalogue | None) -> Iterator[str]:
    if not isinstance(steps, list):
        yield f"{where} must be a list of steps, got {type(steps).__name__}"
        return
    known = catalogue.setup_steps if catalogue else None
    for number, step in enumerate(steps):
        if not isinstance(step, Mapping) or not isinstance(step.get("parameters"), Mapping) or "type" not in step:
            yield f"{where}[{number}] must be an object with type and parameters, got {step!r:.80}"
        else:
            use = yield from _named(step["type"], known, f"{where}[{number}].type", "set-up step")
            yield from _misuses(step["parameters"], use, f"{where}[{number}].parameters")


def _evaluator_problems(evaluator: Any, catalogue: Catalogue | None) -> Iterator[str]:
    if not isinstance(evaluator, Mapping) or "func" not in evaluator:
        yield f"evaluator must be an object with func, got {evaluator!r:.80}"
        return
    yield from _misspelt(evaluator, ("conj", "expected", "options", "postconfig"), "evaluator.")
    yield from _step_problems(evaluator.get("postconfig", []), "evaluator.postconfig", catalogue)
    func = evaluator["func"]
    if func == REWARD_PROGRAM:
        yield from _misuses(evaluator.get("result"), _PROGRAM, "evaluator.result")
        return
    if not evaluator.get("result") and func != INFEASIBLE:
        yield "evaluator.result is missing: it must say what the metric reads"
        return
    if evaluator.get("conj", "and") not in ("and", "or"):
        yield f"evaluator.conj must be 'and' or 'or', got {evaluator['conj']!r:.80}"
    several, at = (func, "[{}]") if isinstance(func, list) else ([func], "")
    parts: list[list[Any]] = []
    for key in ("result", "expected", "options"):
        part = evaluator.get(key)
        if key not in evaluator or (key != "options" and part in ({}, [], "")):
            parts.append([...] * len(several))
        elif several is not func:
            parts.append([part])
        elif not isinstance(part, list) or len(part) != len(func):
            yield f"evaluator.{key} must be a list of {len(func)}, one for each metric of evaluator.func"
            return
        else:
            parts.append(part)
    for number, (name, result, expected, options) in enumerate(zip(several, *parts, strict=True)):
        yield from _metric_problems(name, result, expected, options, at.format(number), catalogue)


def _metric_problems(
    name: Any, result: Any, expected: Any, options: Any, at: str, catalogue: Catalogue | None
) -> Iterator[str]:
    """Check a metric and what the task gives to it; `...` stands for what the task leaves out."""
    use = yield from _named(name, catalogue.metrics if catalogue else None, f"evaluator.func{at}", "metric")
    given: list[Use] = []
    for where, getter in ((f"evaluator.result{at}", result), (f"evaluator.expected{at}", expected)):
        if getter is ...:
            continue
        if not isinstance(getter, Mapping) or "type" not in getter:
            yield f"{where} must be an object with a getter's type, got {getter!r:.80}"
            return
        known = catalogue.getters if catalogue else None
        given.append((yield from _named(getter["type"], known, f"{where}.type", "getter")))
        yield from _misuses(getter, given[-1], where)
        for key in ("path", "dest") if "multi" in given[-1].keys else ():
            if isinstance(getter.get(key), list) != bool(getter.get("multi")):
                yield f"{where}.{key} must be a list if `multi` is true, and only then"
    options = {} if options is ... or (at and not options) else options
    if not isinstance(options, Mapping):
        yield f"evaluator.options{at} must be an object, got {options!r:.80}"
    elif use.keys:
        yield from _call_problems(name, use, given, expected, options, at)


def _call_problems(
    name: str, use: Use, given: list[Use], expected: Any, options: Mapping[str, Any], at: str
) -> Iterator[str]:
    names = list(use.keys)[: use.num_positional]
    if len(given) == 1 and names[1:2] and names[1] in options:  # the client passes options by name
        names = names[:1]
    if len(given) > len(names):
        yield f"evaluator.expected{at} must be left out, since the metric {name} takes no second value"
    elif len(given) == 1 and names[1:2] and names[1] in use.needed:
        yield f"evaluator.expected{at} is missing: it must say what the metric {name} compares the result with"
    elif len(given) == 2 and "rules" in given[1].needed & expected.keys():
        rules, wanted, where = expected["rules"], use.keys[names[1]], f"evaluator.expected{at}.rules"
        yield from _misuses(rules, wanted, where)
        if isinstance(rules, Mapping) and wanted.keys and not wanted.needed and rules.keys().isdisjoint(wanted.keys):
            yield f"{where} must have {' or '.join(wanted.keys)}, got {', '.join(rules) or 'nothing':.80}"
    rest = {key: value for key, value in use.keys.items() if key not in names[:2]}
    yield from _misuses(options, replace(use, keys=rest, needed=use.needed & rest.keys()), f"evaluator.options{at}")


def _misuses(value: Any, use: Use, where: str) -> Iterator[str]:
    """Yield why a function cannot use a value."""
    kind = KINDS.get(type(value).__name__, "true or false")
    if use.kinds and kind not in use.kinds:
        yield f"{where} must be {' or '.join(sorted(use.kinds))}, got {value!r:.80}"
    elif use.kinds == {NUMBER} and value < 0:
        yield f"{where} must be at least 0, got {value!r:.80}"
    elif isinstance(value, list) and use.items is not None:
        for number, item in enumerate(value):
            yield from _misuses(item, use.items, f"{where}[{number}]")
    elif isinstance(value, Mapping):
        for key in sorted(use.needed - value.keys()):
            yield f"{where} must have {key}, got {', '.join(value) or 'nothing':.80}"
        for key in value:
            part = use.keys.get(key, Use())
            if key in use.needed and TEXT in (part.items or part).kinds and value[key] in ("", []):
                yield f"{where}.{key} must not be empty"
            elif key in use.keys:
                yield from _misuses(value[key], part, f"{where}.{key}")
            elif use.closed:
                yield f"{where}.{key:.80} is no argument of the client's{did_you_mean(key[:80], use.keys)}"


def _named(name: Any, known: Uses | None, where: str, what: str) -> Generator[str, None, Use]:
    """Yield why there is no function of this name; return what it needs."""
    if not isinstance(name, str):
        yield f"{where} must be the name of a {what}, got {name!r:.80}"
    elif known is not None and name not in known:
        hint = did_you_mean(name[:80], known)
        yield f"{where} names the {what} {name[:80]!r}, which the installed desktop-env does not have{hint}"
    return known[name]() if known and isinstance(name, str) and name in known else Use()
