"""Tasks that bring their own programs: set-up code, mock web applications, and a reward program that judges.

In OSWorld's format, with a few steps more, and `reward_program` in the place of a metric. All of a bundle's code runs
in the embedded desktop, none on this side. The reward comes back as text, and is read as data: docs/suites.md says what
stands between it and the policy.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo_verl.desktop.guest_process import MAX_OUTPUT
from arpo_verl.desktop.web_apps import WebApp
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.osworld.evaluation import NothingToJudgeError
from arpo_verl.environments.osworld.guest_http import ask
from arpo_verl.errors import DesktopBootError, DesktopLostError, DesktopSetupError, EvaluatorError
from arpo_verl.types import Evaluation, MetricCall

if TYPE_CHECKING:
    from arpo_verl.environments.osworld.client import Client

REWARD_PROGRAM = "reward_program"
"""Name of the metric, and of its getter, whose `program` is the source."""
STEPS = ("web_apps", "bundle_files", "bundle_command", "bundle_end")
PROGRAM_TIMEOUT_S = 180.0
"""As CUA-Gym's own runner gives a set-up and a reward program."""
FULL = 1.0 - 1e-6
"""From here on a reward is a success: programs add up shares such as 0.1."""
_SAID = 2000
_REWARD = re.compile(r"^[ \t]*REWARD:[ \t]*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)", re.MULTILINE)


def is_bundle(spec: Mapping[str, Any]) -> bool:
    """Whether a task is judged by a program of its own."""
    evaluator = spec.get("evaluator")
    return isinstance(evaluator, Mapping) and evaluator.get("func") == REWARD_PROGRAM


class BundleSteps:
    """The set-up steps, for OSWorld's `SetupController`, which calls `_NAME_setup` with a step's parameters."""

    http_server: str
    provider: Any = None
    """Of the desktop: only the embedded one has a way to process 1."""

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
        """Run set-up code to its end; one that fails has made no task."""
        asked = {"command": command, "shell": shell}
        response = ask("POST", f"{self.http_server}/setup/execute", json=asked, timeout=PROGRAM_TIMEOUT_S)
        done = response.json() if response.status_code == 200 else {"error": response.text}
        if done.get("returncode") != 0:
            said = str(done.get("error") or done.get("output"))[-_SAID:]
            raise DesktopSetupError(f"the set-up program {command!r} failed: {said}")

    def _bundle_end_setup(self, remove: list[str]) -> None:
        """The set-up's own programs go; what it gave the applications as initial stays as it is."""
        if remove:
            self._bundle_command_setup(["rm", "-f", *remove])
        _embedded(self.provider).seal()


def _embedded(provider: Any) -> Any:
    if not hasattr(provider, "serve_apps"):
        raise DesktopSetupError(
            "a task with programs of its own needs the embedded desktop: environment.provider=embedded"
        )
    return provider


def judge_bundle(client: Client, name: str, config: EnvironmentConfig) -> Evaluation:
    """The verdict of the reward program of the task that `client` was given. The desktop's programs end with it.

    A success is the full reward; the reward itself is the share.

    Args:
        name: the desktop's, for messages.

    Raises:
        DesktopLostError: the desktop died.
        EvaluatorError: the program said no reward.
    """
    if client.action_history[-1:] == ["FAIL"]:
        return Evaluation(0.0, share=0.0)
    client.setup_controller.judging = True
    try:
        client.setup_controller.setup(client.evaluator.get("postconfig", []))
    except NothingToJudgeError:
        return Evaluation(0.0, share=0.0)
    finally:
        client.setup_controller.judging = False
    timeout_s = min(PROGRAM_TIMEOUT_S, 0.9 * config.evaluate_timeout_s - config.evaluate_pause_s)
    try:
        judged = client.provider.judge(client.evaluator["result"]["program"], timeout_s)
    except DesktopBootError as error:
        raise DesktopLostError(f"{name} was lost while its task was judged: {error}") from error
    if judged.spoiled:
        return Evaluation(0.0, (MetricCall(REWARD_PROGRAM, f"could not run: {judged.spoiled}", "", "0.0"),), 0.0)
    said = judged.stdout.decode(errors="replace")
    if judged.returncode != 0:
        how = f"ended with {judged.returncode}" if judged.returncode is not None else f"took more than {timeout_s:g} s"
        error_text = judged.stderr.decode(errors="replace")[-_SAID:]
        raise EvaluatorError(f"the reward program {how}: {error_text or said[-_SAID:]}")
    reward = read_reward(said)
    return Evaluation(float(reward >= FULL), (MetricCall(REWARD_PROGRAM, said[-_SAID:], "", f"{reward:g}"),), reward)


def read_reward(said: str) -> float:
    """The reward that a program printed, `REWARD: 0.5` on a line of its own.

    The least where there are several: a program may also print what the policy wrote somewhere.

    Raises:
        EvaluatorError: there is none, one is no number from 0 to 1, or it said more than is read.
    """
    if len(said.encode(errors="replace")) > MAX_OUTPUT:
        raise EvaluatorError(f"the reward program said more than {MAX_OUTPUT} bytes")
    rewards = []
    for text in _REWARD.findall(said):
        try:
            rewards.append(float(text))
        except ValueError as error:
            raise EvaluatorError(f"a reward must be a number, got {text[:50]!r}") from error
    if not rewards or not all(math.isfinite(reward) and 0 <= reward <= 1 + 1e-6 for reward in rewards):
        raise EvaluatorError(f"a reward program must print `REWARD: <0 to 1>`, got {said[-200:]!r}")
    return min(1.0, *rewards)
