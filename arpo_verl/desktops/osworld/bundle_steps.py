"""These set-up steps of OSWorld's `SetupController` are for tasks that bring their own programs.

The format is OSWorld's, with a few more steps, and `reward_program` in place of a metric. All code of such a task runs
in the embedded desktop, none in our process.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arpo_verl.desktops.embedded.web_apps import WebApp
from arpo_verl.desktops.osworld.guest_http import ask
from arpo_verl.errors import DesktopSetupError

REWARD_PROGRAM = "reward_program"
"""The name of the metric and of its getter; the getter's `program` is the source."""
STEPS = ("web_apps", "bundle_files", "bundle_command", "bundle_end")
PROGRAM_TIMEOUT_S = 180.0
"""The time-out of a set-up or reward program, as in CUA-Gym's own runner."""
MAX_SAID = 2000
"""Characters of a program's output that an error or a record repeats."""


def is_bundle(spec: Mapping[str, Any]) -> bool:
    """Return whether a task brings its own program as its evaluator."""
    evaluator = spec.get("evaluator")
    return isinstance(evaluator, Mapping) and evaluator.get("func") == REWARD_PROGRAM


class BundleSteps:
    """OSWorld's `SetupController` inherits these steps and calls `_NAME_setup` with a step's parameters."""

    http_server: str
    provider: Any = None
    """The desktop's provider: only the embedded one has a way to process 1."""

    def _web_apps_setup(self, apps: Mapping[str, Mapping[str, Any]]) -> None:
        """Serve mock web applications on the desktop's loopback: `{name: {folder, port}}`."""
        wanted = [WebApp(name, Path(app["folder"]), int(app["port"])) for name, app in apps.items()]
        _embedded(self.provider).serve_apps(wanted)

    def _bundle_files_setup(self, files: list[Mapping[str, str]]) -> None:
        """Write files, each given as `text` or `base64`, to their `path`."""
        for file in files:
            content = base64.b64decode(file["base64"]) if "base64" in file else file["text"].encode()
            form: dict[str, Any] = {"file_path": (None, file["path"]), "file_data": (Path(file["path"]).name, content)}
            response = ask("POST", f"{self.http_server}/setup/upload", files=form, timeout=PROGRAM_TIMEOUT_S)
            if response.status_code != 200:
                raise DesktopSetupError(f"the guest did not take {file['path']}: {response.text[:500]}")

    def _bundle_command_setup(self, command: str | list[str], shell: bool = False) -> None:
        """Run set-up code to its end; if it fails, there is no task."""
        asked = {"command": command, "shell": shell}
        response = ask("POST", f"{self.http_server}/setup/execute", json=asked, timeout=PROGRAM_TIMEOUT_S)
        done = response.json() if response.status_code == 200 else {"error": response.text}
        if done.get("returncode") != 0:
            said = str(done.get("error") or done.get("output"))[-MAX_SAID:]
            raise DesktopSetupError(f"the set-up program {command!r} failed: {said}")

    def _bundle_end_setup(self, remove: list[str] | None = None) -> None:
        """Remove the set-up's own programs, and seal the applications' initial state."""
        if remove:
            self._bundle_command_setup(["rm", "-f", *remove])
        _embedded(self.provider).seal()


def _embedded(provider: Any) -> Any:
    if not hasattr(provider, "serve_apps"):
        raise DesktopSetupError(
            "a task with programs of its own needs the embedded desktop: environment.provider=embedded"
        )
    return provider
