"""Check whether tasks can run on a recipe's desktops, before any of them starts.

The rules read only a task's own JSON. OSWorld's machines have all programs and, except with the provider `qemu`, the
internet, so most rules are about the embedded desktop. The limits of an evaluator's sandbox concern all desktops.
"""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from arpo_verl.desktops.config import EMBEDDED, OSWORLD_PROVIDERS, EnvironmentConfig
from arpo_verl.desktops.embedded.packages import ACCESSIBILITY, install_command, missing_packages, package_of
from arpo_verl.desktops.embedded.programs import can_open, has_program
from arpo_verl.desktops.embedded.web_apps import START_PAGE
from arpo_verl.desktops.osworld.task_files import DownloadStore, default_store, downloads_of, getters_of
from arpo_verl.desktops.providers import QEMU
from arpo_verl.errors import TaskError
from arpo_verl.lib.untrusted import printable
from arpo_verl.tasks.internet import apt_packages, internet_reasons
from arpo_verl.tasks.programs import opened_files, programs_of
from arpo_verl.types import Task, is_bundle

REACH_TIMEOUT_S = 5.0
"""How long a host may take to answer before a download from it counts as impossible."""

_TERMINAL_GETTER, _TERMINAL = "vm_terminal_output", "gnome-terminal"
_ACCESSIBILITY_GETTERS = {"accessibility_tree", "active_url_from_accessTree", _TERMINAL_GETTER}
# These ask the system's first process, which a sandbox does not have.
_SYSTEM_PROGRAMS = {"hostnamectl", "localectl", "loginctl", "snap", "systemctl", "timedatectl"}
_TIME_ZONE_HOST = "ipapi.co"
_IMPORTING_METRICS = {"check_python_file_by_test_suite"}
# These read credentials or files of the machine that evaluates.
_HOST_FILE_STEPS = {"googledrive", "login", "upload_file"}
_HOST_FILE_GETTERS = {"googledrive_file"}
# To know what "tomorrow" is, the client asks the internet where this machine is, and continues without an answer.
_DATES = "rule_relativeTime"

_DESKTOPS = {
    EMBEDDED: "the embedded desktop of this machine",
    QEMU: "the provider qemu, whose machines reach no network",
}


def explain_task(task: Task, environment: EnvironmentConfig) -> list[str]:
    """Return why this machine cannot run a task on the desktops of `environment`; empty if it can. It never raises."""
    try:
        return list(dict.fromkeys(_reasons(task, environment)))
    except Exception as error:  # one file never ends the check of the others
        place = f"{task.where or 'its file'} cannot be checked, {type(error).__name__}: {error}"
        return [f"{printable(place)[:400]}; correct what it names in the task's set-up or evaluator"]


def _reasons(task: Task, environment: EnvironmentConfig) -> list[str]:
    reasons: list[str] = []
    if is_bundle(task.spec):
        reasons += _bundle_reasons(task, environment)
    if environment.provider in (EMBEDDED, *OSWORLD_PROVIDERS):
        reasons += _sandbox_reasons(task.spec, environment)
    if environment.provider == EMBEDDED:
        reasons += [*_program_reasons(task), *internet_reasons(task.spec)]
        reasons += [*_download_reasons(task, environment), *_evaluator_reasons(task)]
    if environment.provider == QEMU:
        reasons += [f"its set-up fetches the package {package}" for package in apt_packages(task.spec)]
        reasons += internet_reasons(task.spec)
    return reasons


def _bundle_reasons(task: Task, environment: EnvironmentConfig) -> Iterator[str]:
    if environment.provider != EMBEDDED:
        yield "it brings its own programs, which only the embedded desktop runs (environment.provider=embedded)"
    for step in task.spec.get("config", []):
        apps = step["parameters"].get("apps", {}) if step["type"] == "web_apps" else {}
        for name, app in apps.items():
            folder = Path(app["folder"])
            if not (folder / START_PAGE).is_file():
                yield (
                    f"its web application {name} is not built: {folder} has no {START_PAGE} (run npm install && npm "
                    "run build there; CUA_GYM_HUB names the applications' folder)"
                )


def check_tasks_run_here(tasks: Iterable[Task], environment: EnvironmentConfig) -> None:
    """Check that tasks can be evaluated, and that they can run if the desktops are on this machine.

    Raises:
        TaskError: names every reason, with the tasks that cannot run because of it.
    """
    ids_by_reason: defaultdict[str, list[str]] = defaultdict(list)
    total = 0
    for task in tasks:
        total += 1
        for reason in explain_task(task, environment):
            ids_by_reason[reason].append(task.task_id)
    if ids_by_reason:
        refused = len({task_id for ids in ids_by_reason.values() for task_id in ids})
        named = "\n".join(f"  {reason}: {_some(ids)}" for reason, ids in ids_by_reason.items())
        raise TaskError(
            f"{refused} of {total} tasks cannot run on {_DESKTOPS.get(environment.provider, 'these desktops')}; remove "
            f"these reasons, or choose other tasks with data.tasks.ids:\n{named}"
        )


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")


def _program_reasons(task: Task) -> Iterator[str]:
    programs = programs_of(task.spec)
    for program in programs:
        if program in _SYSTEM_PROGRAMS:
            yield f"the program {program} needs a booted system, which a sandbox is not"
        elif not has_program(program):
            yield f"the program {_described(program)} is not installed"
    for package in apt_packages(task.spec):
        installed = shutil.which(package) or Path(f"/var/lib/dpkg/info/{package}.list").exists()
        if not installed and package not in programs:
            yield f"its set-up installs the package {package} (apt-get install {package} on this machine)"
    for path in opened_files(task.spec):
        if not can_open(path):
            yield f"no program that opens {Path(path).suffix} files is installed"


def _described(program: str) -> str:
    package = package_of(program)
    return f"{program} (not in Debian)" if package is None else f"{program} (apt-get install {package})"


def _sandbox_reasons(spec: Mapping[str, Any], environment: EnvironmentConfig) -> Iterator[str]:
    """Yield why no sandbox can evaluate a task with the recipe's options, and what to do."""
    evaluator = spec.get("evaluator", {})
    func = evaluator.get("func", [])
    metrics = set(func if isinstance(func, list) else [func])
    if metrics & _IMPORTING_METRICS and not environment.evaluator_runs_policy_code:
        yield (
            "its metric imports the policy's code, which can then give itself any score "
            "(environment.evaluator_runs_policy_code=true allows it)"
        )
    steps = {step["type"] for step in evaluator.get("postconfig", [])}
    getters = getters_of(spec)
    reading = sorted((steps & _HOST_FILE_STEPS) | ({getter["type"] for getter in getters} & _HOST_FILE_GETTERS))
    if reading:
        yield f"its evaluator reads files of this machine ({', '.join(reading)}), which its sandbox does not have"
    asks = any(getter["type"] == _DATES and "timezone" not in getter.get("rules", {}) for getter in getters)
    if asks and _TIME_ZONE_HOST not in environment.evaluator_hosts:
        yield (
            f"its expected date depends on where this machine is, and its evaluator asks {_TIME_ZONE_HOST} for that "
            f"(environment.evaluator_hosts=[{_TIME_ZONE_HOST}] allows it)"
        )
    for getter in getters:
        names = getter.get("dest") or []
        names = names if isinstance(names, list) else [names]
        if getter["type"] == "cloud_file" and any("/" in name for name in names):
            yield "its evaluator downloads into its own folder, but its sandbox has no network"


def _evaluator_reasons(task: Task) -> Iterator[str]:
    kinds = {getter["type"] for getter in getters_of(task.spec)}
    missing = missing_packages(ACCESSIBILITY)
    if kinds & _ACCESSIBILITY_GETTERS and missing:
        yield f"its evaluator reads the accessibility tree ({install_command(missing)})"
    if _TERMINAL_GETTER in kinds and not has_program(_TERMINAL):
        yield f"its evaluator reads the text of GNOME's terminal ({install_command([_TERMINAL])})"


def _download_reasons(task: Task, environment: EnvironmentConfig) -> Iterator[str]:
    """Yield downloads that cannot succeed: OSWorld's client makes them on the host, if the file is not kept there."""
    folder = default_store() if environment.cache_dir is None else Path(environment.cache_dir).expanduser()
    store = DownloadStore(folder)
    for download in downloads_of(task.spec):
        origin = "/".join(download.url.split("/", 3)[:3])
        host = origin.partition("://")[2] or download.url[:80]
        if not store.path(task.task_id, download).is_file() and not _is_reachable(origin):
            yield f"it downloads from {host}, which this machine cannot reach, and {folder} lacks files"


@cache
def _is_reachable(origin: str) -> bool:
    """Return whether a web server gives any answer, through the environment's proxies if there are any."""
    if not origin.startswith(("http://", "https://")):
        return False
    try:
        request = urllib.request.Request(origin, method="HEAD")  # noqa: S310  of the web alone
        urllib.request.urlopen(request, timeout=REACH_TIMEOUT_S).close()  # noqa: S310
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True
