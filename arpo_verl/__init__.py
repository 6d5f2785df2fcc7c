"""ARPO for stock veRL: train vision-language agents on real desktops by reinforcement learning with replay.

    import arpo_verl

    task = arpo_verl.load_tasks("embedded")[0]
    with arpo_verl.make_desktop("embedded") as desktop:
        episode = arpo_verl.play(task, desktop, policy)
    run = arpo_verl.open_run("runs/embedded")

docs/architecture.md shows the ten rooms, in the order of imports. No training run imports `tools`, `api` or `gym`.

`import verl` loads this package in every process. So it imports each name only when the name is first used.
`__init__.pyi` beside it gives type checkers the same names.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from arpo_verl.lib import old_names

if sys.version_info < (3, 11):  # noqa: UP036  # pip would refuse, but a checkout may just be on the path
    raise ImportError(
        "arpo_verl needs Python 3.11 or newer, this is Python " + ".".join(map(str, sys.version_info[:3]))
    )

_EXPORTS = {
    "agent.actions.reply": "Reply",
    "api": "make_desktop play",
    "desktops.machine_provider": "GuestAddress MachineProvider",
    "desktops.base": "DesktopEnvironment",
    "desktops.config": "EnvironmentConfig",
    "errors": (
        "ActionError ActionParseError ArpoError ConfigError DesktopBootError DesktopEndedError DesktopError "
        "DesktopLostError DesktopSetupError DesktopUnclearError EndpointError EvaluatorError FetchError "
        "GenerationError HarnessError HostLostError ImageError MissingDependencyError PatchLostError ReplayError "
        "RequestError SeveralErrors TaskError"
    ),
    "agent.models.family": "ImageLimits ModelFamily",
    "records.run": "Run open_run",
    "replay.config": "ReplayConfig",
    "agent.rollout.config": "GuiAgentConfig",
    "agent.rollout.episode": "Episode Turn",
    "tasks.loader": "load_tasks",
    "tasks.selection": "TaskSelection",
    "versions": "__version__",
    "types": (
        "Action Click Drag EpisodeId Evaluation Fail Finish Hotkey MetricCall Move Observation Point Scroll Size "
        "StopReason Task TypeText Wait"
    ),
}
_MODULES = {name: f"arpo_verl.{module}" for module, names in _EXPORTS.items() for name in names.split()}

__all__ = [name for name in _MODULES if name != "__version__"]
"""And `gym`, if Gymnasium is installed."""

old_names.install()


def __getattr__(name: str) -> Any:
    if name == "gym":
        return importlib.import_module("arpo_verl.gym")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
