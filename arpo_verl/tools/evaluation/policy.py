"""The interface of an evaluated policy for the runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Protocol

from arpo_verl.agent.harness.policy_chat import PolicyChat
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import Conversation
from arpo_verl.lib.config import check_fields, number, whole
from arpo_verl.tools.evaluation.results import Trial


@dataclass(frozen=True)
class Sampling:
    """How to sample replies."""

    temperature: Annotated[float, number(lambda x: x >= 0, "0 or more")] = 0.6
    """Temperature; 0 takes the likeliest token, 0.6 is the paper's value in its evaluations."""
    top_p: Annotated[float, number(lambda x: 0 < x <= 1, "above 0 and at most 1")] = 1.0
    seed: Annotated[int, whole(0)] = 0
    """Seed from which each reply's own seed follows, see `reply_seed`."""

    def __post_init__(self) -> None:
        check_fields(self)


class Policy(Protocol):
    """A policy makes a conversation for each episode of our loop, and a chat for each of a harness."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What identifies the policy, as JSON: part of an evaluation's settings."""

    def conversation(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> Conversation:
        """Start the conversation of a new episode, which our loop plays."""

    def chat(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> PolicyChat:
        """Start the chat of a new episode, which a harness plays."""


def reply_seed(sampling: Sampling, trial: Trial, number: int) -> int:
    """Return the seed of a trial's reply with this number, from 0: the same each time, in any order of trials."""
    name = f"{sampling.seed} {trial.task_id} {trial.run} {trial.max_steps} {number}"
    return int.from_bytes(sha256(name.encode()).digest()[:4], "big") >> 1
