"""Who is evaluated, as the runner meets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Protocol

from arpo_verl.config import check_fields, number, whole
from arpo_verl.evaluation.results import Trial
from arpo_verl.harness.policy_chat import PolicyChat
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.conversation import Conversation


@dataclass(frozen=True)
class Sampling:
    """How replies are drawn."""

    temperature: Annotated[float, number(lambda x: x >= 0, "0 or more")] = 0.6
    """0 takes the likeliest token; 0.6 is the paper's in its evaluations."""
    top_p: Annotated[float, number(lambda x: 0 < x <= 1, "above 0 and at most 1")] = 1.0
    seed: Annotated[int, whole(0)] = 0
    """Each reply's own follows from it: see `reply_seed`."""

    def __post_init__(self) -> None:
        check_fields(self)


class Policy(Protocol):
    """Speaks in episodes: with our loop by a conversation, with a harness by a chat."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What it is, as JSON: part of an evaluation's settings."""

    def conversation(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> Conversation:
        """A new episode's, which our loop plays."""

    def chat(self, config: GuiAgentConfig, sampling: Sampling, trial: Trial) -> PolicyChat:
        """A new episode's, which a harness plays."""


def reply_seed(sampling: Sampling, trial: Trial, number: int) -> int:
    """Of a trial's reply of this number, from 0: the same in every run, in whatever order trials are played."""
    name = f"{sampling.seed} {trial.task_id} {trial.run} {trial.max_steps} {number}"
    return int.from_bytes(sha256(name.encode()).digest()[:4], "big") >> 1
