"""`cua_gym:FOLDER` reads CUA-Gym's task bundles as tasks.

    FOLDER/<task_id>/task.json        id, instruction, config (OSWorld's steps), evaluator {type, url: ./reward.py}
    FOLDER/<task_id>/initial_setup.*  a step `download` puts ./initial_setup.py and the like into the desktop
    FOLDER/<task_id>/reward.py        prints `REWARD: <0 to 1>`
    FOLDER/websites/<app>_mock/dist   built applications of CUA-Gym-Hub; or $CUA_GYM_HUB/websites/...

Addresses of the applications, `__CUA_GYM_<APP>_URL__`, `__CUA_GYM_<APP>_HOST__` and the hosted
`https://cua-gym-<app>.xlang.ai`, become ports of the desktop's own loopback. Each task carries its programs, so running
it needs the built applications, but no bundle. We run nothing of a bundle here.

Source: the card of the data set xlangai/CUA-Gym, the READMEs of xlang-ai/CUA-Gym and CUA-Gym-Hub (arXiv 2605.25624).
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from arpo_verl.errors import TaskError
from arpo_verl.lib.untrusted import parse_json, read_regular
from arpo_verl.types import REWARD_PROGRAM

FIRST_PORT = 8100
MAX_FILE_BYTES = 16 << 20
HUB_VARIABLE = "CUA_GYM_HUB"
_PLACEHOLDER = re.compile(r"__CUA_GYM_([A-Z0-9_]{1,64}?)_(URL|HOST)__")
_HOSTED = re.compile(r"(https?://)?cua-gym-([a-z0-9-]{1,64})\.xlang\.ai")
_CODE = (".py", ".sh")


def load(argument: str) -> Iterator[Mapping[str, Any] | TaskError]:
    """Yield the tasks of a folder's bundles in OSWorld's format, by name, or why we cannot read one.

    Args:
        argument: a folder of bundles, or a single bundle.

    Raises:
        TaskError: the folder has no bundle.
    """
    folder = Path(argument).expanduser().absolute()
    single = [folder] if (folder / "task.json").is_file() else []
    bundles = single or sorted(path.parent for path in folder.glob("*/task.json"))
    if not bundles:
        raise TaskError(
            f"cua_gym:{argument} names no folder with CUA-Gym's task bundles, FOLDER/<task_id>/task.json; extract the "
            "data set's artifacts/*.tar.zst there"
        )
    hub = Path(os.environ.get(HUB_VARIABLE) or (folder.parent if single else folder)).expanduser().absolute()
    names = _names_of_apps(hub / "websites")
    for bundle in bundles:
        try:
            yield _task(bundle, hub / "websites", names)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            yield TaskError(f"the bundle {bundle} cannot be read: {type(error).__name__}: {error}")


def _names_of_apps(websites: Path) -> dict[str, str]:
    """Return the folder of each application, by its name in placeholders."""
    return {_upper(folder.name.removesuffix("_mock")): folder.name for folder in websites.glob("*_mock")}


def _upper(name: str) -> str:
    return name.upper().replace("-", "_")


def _task(bundle: Path, websites: Path, names: Mapping[str, str]) -> dict[str, Any]:
    apps = _Apps(names)
    content = parse_json(apps.localized(_read(bundle, "task.json").decode()))
    evaluator = content["evaluator"]
    if evaluator.get("type") != "python":
        raise ValueError(f"its evaluator must be of type python, got {evaluator.get('type')!r}")
    program = apps.localized(_read(bundle, evaluator["url"]).decode())
    steps: list[dict[str, Any]] = []
    written: list[str] = []
    for step in content.get("config", []):
        steps += _steps(bundle, step, apps, written)
    served = {app: {"folder": str(websites / app / "dist"), "port": port} for app, port in apps.ports.items()}
    if served:
        steps.insert(0, {"type": "web_apps", "parameters": {"apps": served}})
    remove = [path for path in written if PurePosixPath(path).suffix in _CODE]
    steps.append({"type": "bundle_end", "parameters": {"remove": remove}})
    program_evaluator: dict[str, Any] = {"func": REWARD_PROGRAM, "result": {"type": REWARD_PROGRAM, "program": program}}
    if evaluator.get("postconfig"):
        program_evaluator["postconfig"] = evaluator["postconfig"]
    return {
        "id": content["id"],
        "instruction": content["instruction"],
        "source": "cua_gym",
        "related_apps": ["chrome"] if served else [],
        "config": steps,
        "evaluator": program_evaluator,
    }


def _steps(bundle: Path, step: Mapping[str, Any], apps: _Apps, written: list[str]) -> list[dict[str, Any]]:
    """Return a bundle's step as ours: with its own files, which must succeed when they run; other steps unchanged."""
    kind, parameters = step["type"], step["parameters"]
    if kind == "execute" and any(path in json.dumps(parameters["command"]) for path in written):
        return [{"type": "bundle_command", "parameters": parameters}]
    if kind != "download":
        return [{"type": kind, "parameters": parameters}]
    carried = [file for file in parameters["files"] if "://" not in file["url"]]
    downloaded = [file for file in parameters["files"] if "://" in file["url"]]
    steps: list[dict[str, Any]] = []
    if carried:
        written += [file["path"] for file in carried]
        files = [_file(file["path"], _read(bundle, file["url"]), apps) for file in carried]
        steps.append({"type": "bundle_files", "parameters": {"files": files}})
    return steps + ([{"type": "download", "parameters": {"files": downloaded}}] if downloaded else [])


def _file(path: str, content: bytes, apps: _Apps) -> dict[str, str]:
    try:
        return {"path": path, "text": apps.localized(content.decode())}
    except UnicodeDecodeError:
        return {"path": path, "base64": base64.b64encode(content).decode()}


def _read(bundle: Path, url: str) -> bytes:
    path = (bundle / url).resolve()
    if not path.is_relative_to(bundle.resolve()):
        raise ValueError(f"{url!r} leads out of the bundle")
    return read_regular(path, MAX_FILE_BYTES)


class _Apps:
    """The applications that a bundle's texts name, and their ports."""

    def __init__(self, names: Mapping[str, str]):
        self.ports: dict[str, int] = {}
        self._names = names

    def localized(self, text: str) -> str:
        """Return the text with all addresses of applications changed to the desktop's loopback."""
        text = _PLACEHOLDER.sub(lambda found: self._address(found[1], found[2] == "URL"), text)
        return _HOSTED.sub(lambda found: self._address(found[2], found[1] is not None), text)

    def _address(self, name: str, with_scheme: bool) -> str:
        folder = self._names.get(_upper(name), f"{_upper(name).lower()}_mock")
        port = self.ports.setdefault(folder, FIRST_PORT + len(self.ports))
        return f"{'http://' if with_scheme else ''}localhost:{port}"
