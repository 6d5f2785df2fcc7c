"""This module gives the verdict of a task that brings its own reward program.

The program runs in the embedded desktop. It prints its reward, and we read that text as data: docs/suites.md says what
protects it from the policy.
"""

from __future__ import annotations

import math
import re

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.embedded.guest_process import MAX_OUTPUT
from arpo_verl.desktops.osworld.absent_results import AbsentResultError
from arpo_verl.desktops.osworld.bundle_steps import MAX_SAID, PROGRAM_TIMEOUT_S, REWARD_PROGRAM
from arpo_verl.desktops.osworld.client import Client
from arpo_verl.errors import DesktopBootError, DesktopLostError, EvaluatorError
from arpo_verl.types import Evaluation, MetricCall

FULL = 1.0 - 1e-6
"""A reward from here on is a success: programs add up shares such as 0.1."""
_REWARD = re.compile(r"^[ \t]*REWARD:[ \t]*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)", re.MULTILINE)


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
