"""Hold a past success as a value, with everything from which its training rows can be rebuilt. Pure."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from arpo_verl.errors import ReplayError
from arpo_verl.types import EpisodeId, finite_number

TypeCode = Literal["i", "B", "f"]

# Machine values instead of Python objects: 4 bytes for a token id or a log-prob (float32, as in the trainer's tensors),
# 1 byte for a mask bit. Tuples of objects take 36, 32 and 8.
COLUMNS: Mapping[str, TypeCode] = {
    "prompt_ids": "i",
    "response_ids": "i",
    "response_mask": "B",
    "rollout_log_probs": "f",
}
"""The fields with one value for each token, and the type codes of their arrays."""


class RowSpan(NamedTuple):
    """How many tokens of a trajectory one of its rows has, and which of its screenshots the row shows."""

    prompt_tokens: int
    response_tokens: int
    first_screenshot: int
    num_screenshots: int


class StoredRow(NamedTuple):
    """One row of a trajectory: its slices of the columns."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    response_mask: Sequence[int]
    rollout_log_probs: Sequence[float] | None
    screenshots: range
    """Numbers of the trajectory's screenshots that it shows. Each row continues those before it."""

    def replies(self) -> Iterator[list[int]]:
        """Yield the tokens of each reply that was written in it."""
        tokens = zip(self.response_mask, self.response_ids, strict=True)
        for is_reply, run in itertools.groupby(tokens, lambda token: token[0]):
            if is_reply:
                yield [token_id for _, token_id in run]


@dataclass(frozen=True)
class StoredTrajectory:
    """One successful rollout, as plain values that can be pickled. Any sequence is accepted as a column.

    If a rollout has several rows (see `GuiAgentConfig.context`), their columns are joined.
    """

    task_id: str
    step: int
    """Training step whose rollout made it."""
    success: float
    """The evaluator's score, from 0 to 1."""
    reward: float
    """The reward in training: the score and the format reward."""
    prompt_ids: Sequence[int] = field(repr=False)
    response_ids: Sequence[int] = field(repr=False)
    response_mask: Sequence[int] = field(repr=False)
    """1 for a token that the policy wrote, 0 for others."""
    rollout_log_probs: Sequence[float] | None = field(repr=False)
    """Log-probs of the policy that wrote it, one for each response token, float32; None if nobody recorded them, as in
    a demonstration."""
    screenshots: Sequence[bytes] = field(repr=False)
    """The desktop's files, or losslessly re-encoded ones, in order; each once, whichever rows show it."""
    num_turns: int = 0
    task_content: str = ""
    """The content of the task that it solved, see `rules.task_content`. Empty in a store that was saved before version
    6, which does not say it."""
    extra_fields: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The row's other extra fields, as plain values."""
    mm_processor_kwargs: Mapping[str, Any] | None = field(default=None, repr=False)
    """The rollout's own arguments of the processor, if it had any."""
    episode: EpisodeId | None = field(default=None, compare=False)
    """The episode in this run's records; None for a seed, and in a store that was saved before version 2. Two episodes
    may lead to the same trajectory."""
    rows: Sequence[RowSpan] = field(default=(), repr=False)
    """The rows in order; by default one row with everything."""

    def __post_init__(self) -> None:
        if not self.task_id:
            raise ReplayError("a stored trajectory must name its task, got an empty task_id")
        check_scores(self.task_id, self.success, self.reward)
        for name, type_code in COLUMNS.items():
            values = getattr(self, name)
            if values is not None and not (isinstance(values, array) and values.typecode == type_code):
                object.__setattr__(self, name, array(type_code, values))
        object.__setattr__(self, "screenshots", tuple(self.screenshots))
        whole = RowSpan(len(self.prompt_ids), len(self.response_ids), 0, len(self.screenshots))
        object.__setattr__(self, "rows", tuple(RowSpan(*row) for row in self.rows or [whole]))
        self._check_lengths()
        self._check_rows()

    @classmethod
    def of_rows(cls, rows: Sequence[StoredRow], **fields: Any) -> StoredTrajectory:
        """Join rows; `fields` are the trajectory's other fields."""
        log_probs = None if rows[0].rollout_log_probs is None else _joined(row.rollout_log_probs or () for row in rows)
        return cls(
            prompt_ids=_joined(row.prompt_ids for row in rows),
            response_ids=_joined(row.response_ids for row in rows),
            response_mask=_joined(row.response_mask for row in rows),
            rollout_log_probs=log_probs,
            rows=[
                RowSpan(len(row.prompt_ids), len(row.response_ids), row.screenshots.start, len(row.screenshots))
                for row in rows
            ],
            **fields,
        )

    def each_row(self) -> Iterator[StoredRow]:
        """Yield the rows in order."""
        prompt = response = 0
        for span in self.rows:
            prompts, responses = slice(prompt, prompt + span.prompt_tokens), slice(response, response + span[1])
            prompt, response = prompts.stop, responses.stop
            yield StoredRow(
                self.prompt_ids[prompts],
                self.response_ids[responses],
                self.response_mask[responses],
                None if self.rollout_log_probs is None else self.rollout_log_probs[responses],
                range(span.first_screenshot, span.first_screenshot + span.num_screenshots),
            )

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

    def _check_rows(self) -> None:
        spans = [span for span in self.rows if set(map(type, span)) == {int} and min(span) >= 0 < min(span[:2])]
        sums = (sum(span.prompt_tokens for span in spans), sum(span.response_tokens for span in spans))
        seen = 0
        for span in spans:
            if not span.first_screenshot <= seen <= span.first_screenshot + span.num_screenshots:
                break
            seen = span.first_screenshot + span.num_screenshots
        expected = (len(self.prompt_ids), len(self.response_ids), len(self.screenshots))
        if len(spans) < len(self.rows) or (*sums, seen) != expected:
            raise ReplayError(
                f"trajectory of task {self.task_id}: its rows must have its {expected[0]} and {expected[1]} tokens and "
                f"show its {expected[2]} screenshots in order, got {len(self.rows)} rows, the first of them "
                f"{list(map(tuple, self.rows[:3]))}"
            )


def check_scores(task_id: object, success: object, reward: object) -> None:
    """Refuse a trajectory that would make its group's advantages NaN.

    Raises:
        ReplayError: names the first score that is not a finite number.
    """
    for name, value in (("success", success), ("reward", reward)):
        if finite_number(value) is None:
            raise ReplayError(
                f"trajectory of task {task_id}: its {name} must be a finite number, got {value!r:.80}; "
                "leave it out of the store"
            )


def _joined(columns: Iterable[Sequence[Any]]) -> list[Any]:
    return [value for column in columns for value in column]
