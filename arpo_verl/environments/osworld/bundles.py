"""The verdict of a task that brings its own reward program.

The program runs in the embedded desktop. Its reward comes back as text, and is read as data: docs/suites.md says what
stands between it and the policy.
"""

from __future__ import annotations

import math
import re

from arpo_verl.desktop.guest_process import MAX_OUTPUT
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.osworld.absent_results import AbsentResultError
from arpo_verl.environments.osworld.bundle_steps import MAX_SAID, PROGRAM_TIMEOUT_S, REWARD_PROGRAM
from arpo_verl.environments.osworld.client import Client
from arpo_verl.errors import DesktopBootError, DesktopLostError, EvaluatorError
from arpo_verl.types import Evaluation, MetricCall

FULL = 1.0 - 1e-6
"""From here on a reward is a success: programs add up shares such as 0.1."""
_REWARD = re.compile(r"^[ \t]*REWARD:[ \t]*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)", re.MULTILINE)


def evaluate_bundle(client: Client, name: str, config: EnvironmentConfig) -> Evaluation:
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
