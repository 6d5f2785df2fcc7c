"""A past success as a value: everything from which its training row can be made again. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from arpo_verl.errors import ReplayError
from arpo_verl.types import EpisodeId

TypeCode = Literal["i", "B", "f"]

# Machine values instead of Python objects: 4 bytes a token id and a log-prob (float32, as the trainer's tensors hold
# them), 1 byte a mask bit, where tuples of objects take 36, 32 and 8.
COLUMNS: Mapping[str, TypeCode] = {
    "prompt_ids": "i",
    "response_ids": "i",
    "response_mask": "B",
    "rollout_log_probs": "f",
}
"""The fields of one value a token, and the type codes of their arrays."""


@dataclass(frozen=True)
class StoredTrajectory:
    """One successful rollout. Plain values, picklable; columns may be given as any sequence and are kept as arrays."""

    task_id: str
    step: int
    """Training step whose rollout made it."""
    success: float
    """The evaluator's score, in [0, 1]."""
    reward: float
    """What training saw: the score and the format reward."""
    prompt_ids: Sequence[int] = field(repr=False)
    response_ids: Sequence[int] = field(repr=False)
    response_mask: Sequence[int] = field(repr=False)
    """1 for a token that the policy wrote, 0 for the desktop's."""
    rollout_log_probs: Sequence[float] | None = field(repr=False)
    """Of the policy that made the trajectory, one per response token, float32; None where nobody recorded them, as in
    a demonstration."""
    screenshots: Sequence[bytes] = field(repr=False)
    """As the desktop sent them or losslessly re-encoded, in order of the sequence."""
    num_turns: int = 0
    extra_fields: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The row's other extra fields, plain values."""
    mm_processor_kwargs: Mapping[str, Any] | None = field(default=None, repr=False)
    """Of the processor call, where the rollout set its own."""
    episode: EpisodeId | None = field(default=None, compare=False)
    """The episode that it is in this run's records; None for a seed, and in a store that was saved before version 2.
    Two episodes may come to the same trajectory."""

    def __post_init__(self) -> None:
        if not self.task_id:
            raise ReplayError("a stored trajectory must name its task, got an empty task_id")
        for name, type_code in COLUMNS.items():
            values = getattr(self, name)
            if values is not None and not (isinstance(values, array) and values.typecode == type_code):
                object.__setattr__(self, name, array(type_code, values))
        object.__setattr__(self, "screenshots", tuple(self.screenshots))
        self._check_lengths()

    def _check_lengths(self) -> None:
        length = len(self.response_ids)
        if not self.prompt_ids or not length:
            raise ReplayError(
                f"trajectory of task {self.task_id}: prompt and response must not be empty, "
                f"got {len(self.prompt_ids)} and {length} tokens"
            )
        for name in ("response_mask", "rollout_log_probs"):
            values = getattr(self, name)
            if values is not None and len(values) != length:
                raise ReplayError(
                    f"trajectory of task {self.task_id}: {name} must have one entry for each of the {length} response "
                    f"tokens, got {len(values)}"
                )
