"""Why a task's evaluator cannot work in a sandbox (`environments/osworld/verdict/`), read from the task's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.tasks.programs import getters_of

TIME_ZONE_HOST = "ipapi.co"
_IMPORTING_METRICS = {"check_python_file_by_test_suite"}
# They read credentials or files of the machine that evaluates.
_HOST_FILE_STEPS = {"googledrive", "login", "upload_file"}
_HOST_FILE_GETTERS = {"googledrive_file"}
# The client asks the internet where this machine is, for what "tomorrow" is, and goes on without an answer.
_DATES = "rule_relativeTime"


def box_reasons(spec: Mapping[str, Any], environment: EnvironmentConfig) -> Iterator[str]:
    """Why no sandbox can evaluate a task as the recipe's section says, and what to do."""
    evaluator = spec.get("evaluator", {})
    func = evaluator.get("func", [])
    metrics = set(func if isinstance(func, list) else [func])
    if metrics & _IMPORTING_METRICS and not environment.evaluator_runs_policy_code:
        yield (
            "its metric imports what the policy wrote, which can then give itself any score "
            "(environment.evaluator_runs_policy_code=true allows it)"
        )
    steps = {step["type"] for step in evaluator.get("postconfig", [])}
    getters = getters_of(spec)
    reading = sorted((steps & _HOST_FILE_STEPS) | ({getter["type"] for getter in getters} & _HOST_FILE_GETTERS))
    if reading:
        yield f"its evaluator reads files of this machine ({', '.join(reading)}), which its sandbox has not"
    asks = any(getter["type"] == _DATES and "timezone" not in getter.get("rules", {}) for getter in getters)
    if asks and TIME_ZONE_HOST not in environment.evaluator_hosts:
        yield (
            f"its expected date depends on where this machine is, which its evaluator asks {TIME_ZONE_HOST} "
            f"(environment.evaluator_hosts=[{TIME_ZONE_HOST}] allows it)"
        )
    for getter in getters:
        names = getter.get("dest") or []
        names = names if isinstance(names, list) else [names]
        if getter["type"] == "cloud_file" and any("/" in name for name in names):
            yield "its evaluator downloads into a folder of its own, which its sandbox has no network for"
