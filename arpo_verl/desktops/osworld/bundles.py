"""Tasks that bring their own programs: their set-up steps, for OSWorld's `SetupController`, and their verdict.

The format is OSWorld's, with a few more steps, and `reward_program` in place of a metric. All code of such a task runs
in the embedded desktop, none in our process. The reward program prints its reward, and we read that text as data:
docs/suites.md says what protects it from the policy.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.embedded.web_apps import WebApp
from arpo_verl.desktops.machine_provider import MAX_OUTPUT
from arpo_verl.desktops.osworld.absent_results import AbsentResultError
from arpo_verl.desktops.osworld.guest_http import ask
from arpo_verl.errors import DesktopBootError, DesktopLostError, DesktopSetupError, EvaluatorError
from arpo_verl.types import REWARD_PROGRAM, Evaluation, MetricCall

if TYPE_CHECKING:
    from arpo_verl.desktops.osworld.client import Client

PROGRAM_TIMEOUT_S = 180.0
"""The time-out of a set-up or reward program, as in CUA-Gym's own runner."""
MAX_SAID = 2000
"""Characters of a program's output that an error or a record repeats."""
FULL = 1.0 - 1e-6
"""A reward from here on is a success: programs add up shares such as 0.1."""
_REWARD = re.compile(r"^[ \t]*REWARD:[ \t]*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)(?![^\s,;(])", re.MULTILINE)


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


def evaluate_bundle(client: Client, name: str, config: EnvironmentConfig) -> Evaluation:
    """Run the reward program of the client's current task and return its verdict. It ends the desktop's programs.

    Only the full reward is a success; the reward itself is the share.

    Args:
        name: the desktop's, for messages.

    Raises:
        DesktopLostError: the desktop died.
        EvaluatorError: the program printed no reward.
    """
    if client.action_history[-1:] == ["FAIL"]:
        return Evaluation(0.0, share=0.0)
    client.setup_controller.evaluating = True
    try:
        client.setup_controller.setup(client.evaluator.get("postconfig", []))
    except AbsentResultError:
        return Evaluation(0.0, share=0.0)
    finally:
        client.setup_controller.evaluating = False
    timeout_s = min(PROGRAM_TIMEOUT_S, 0.9 * config.evaluate_timeout_s - config.evaluate_pause_s)
    try:
        run = client.provider.run_reward_program(client.evaluator["result"]["program"], timeout_s)
    except DesktopBootError as error:
        raise DesktopLostError(f"{name} was lost while its task was evaluated: {error}") from error
    if run.spoiled:
        return Evaluation(0.0, (MetricCall(REWARD_PROGRAM, f"could not run: {run.spoiled}", "", "0.0"),), 0.0)
    said = run.stdout.decode(errors="replace")
    if run.returncode != 0:
        ending = f"ended with {run.returncode}" if run.returncode is not None else f"took more than {timeout_s:g} s"
        error_text = run.stderr.decode(errors="replace")[-MAX_SAID:]
        raise EvaluatorError(f"the reward program {ending}: {error_text or said[-MAX_SAID:]}")
    reward = read_reward(said)
    return Evaluation(float(reward >= FULL), (MetricCall(REWARD_PROGRAM, said[-MAX_SAID:], "", f"{reward:g}"),), reward)


def read_reward(said: str) -> float:
    """Return the reward that a program printed, as a line `REWARD: 0.5`.

    Of several it takes the least, since a program may also print what the policy wrote somewhere.

    Raises:
        EvaluatorError: there is none, one is no number from 0 to 1, or the output is longer than `MAX_OUTPUT`.
    """
    if len(said.encode(errors="replace")) > MAX_OUTPUT:
        raise EvaluatorError(f"the reward program printed more than {MAX_OUTPUT} bytes")
    rewards = []
    for text in _REWARD.findall(said):
        try:
            rewards.append(float(text))
        except ValueError as error:
            raise EvaluatorError(f"a reward must be a number, got {text[:50]!r}") from error
    if not rewards or not all(math.isfinite(reward) and 0 <= reward <= 1 + 1e-6 for reward in rewards):
        raise EvaluatorError(f"a reward program must print `REWARD: <0 to 1>`, got {said[-200:]!r}")
    return min(1.0, *rewards)
