"""The store of past successes: plain Python, no torch, no veRL.

A trajectory is kept small: token ids, mask, log-probs, and the screenshots as the bytes that came from the desktop.
Pixel tensors and position ids (some 50 MB a 1080p screenshot in float32, against 0.4 MB of PNG) are made anew on
injection. See `rows.py`.
"""

from __future__ import annotations

import dataclasses
import logging
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from arpo_verl.errors import ReplayError

logger = logging.getLogger(__name__)

# What CPython takes for an entry of a tuple: the pointer, and the object unless it is one of the cached small ints.
_BYTES_PER_TOKEN_ID = 8 + 28
_BYTES_PER_MASK_BIT = 8
_BYTES_PER_FLOAT = 8 + 24


@dataclass(frozen=True)
class StoredTrajectory:
    """One successful rollout: everything from which its training row can be made again. Plain values, picklable."""

    task_id: str
    step: int
    """Training step whose rollout made it."""
    success: float
    """The evaluator's score, in [0, 1]."""
    reward: float
    """What training saw: the score and the format reward."""
    prompt_ids: tuple[int, ...] = field(repr=False)
    response_ids: tuple[int, ...] = field(repr=False)
    response_mask: tuple[int, ...] = field(repr=False)
    """1 for a token that the policy wrote, 0 for the desktop's."""
    rollout_log_probs: tuple[float, ...] | None = field(repr=False)
    """Of the policy that made the trajectory, one per response token; None where the rollout recorded none."""
    screenshots: tuple[bytes, ...] = field(repr=False)
    """As the desktop sent them, in order of the sequence."""
    num_turns: int = 0
    extra_fields: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The row's other extra fields, plain values."""
    mm_processor_kwargs: Mapping[str, Any] | None = field(default=None, repr=False)
    """Of the processor call, where the rollout set its own."""

    def __post_init__(self) -> None:
        if not self.task_id:
            raise ReplayError("a stored trajectory must name its task, got an empty task_id")
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

    @property
    def num_bytes_without_screenshots(self) -> int:
        ids = len(self.prompt_ids) + len(self.response_ids)
        log_probs = len(self.rollout_log_probs or ())
        return ids * _BYTES_PER_TOKEN_ID + len(self.response_mask) * _BYTES_PER_MASK_BIT + log_probs * _BYTES_PER_FLOAT


class SuccessStore:
    """First in, first out: at most `capacity_per_task` successes a task, at most `capacity_bytes` over all.

    Identical screenshots (the first one of a task nearly always is) are held and counted once.
    """

    def __init__(self, capacity_per_task: int, capacity_bytes: int) -> None:
        self._capacity_per_task = capacity_per_task
        self._capacity_bytes = capacity_bytes
        self._trajectories: dict[int, StoredTrajectory] = {}  # by serial number: oldest first
        self._serials: dict[str, deque[int]] = {}  # by task, oldest first
        self._screenshots: dict[bytes, _Shared] = {}
        self._num_bytes = 0
        self._next_serial = 0

    def add(self, trajectory: StoredTrajectory) -> bool:
        """Store `trajectory` as the newest, and drop the oldest of its task, then of all, until both bounds hold.

        Returns:
            False when it alone exceeds the byte budget and was not stored.
        """
        alone = trajectory.num_bytes_without_screenshots + sum(map(len, set(trajectory.screenshots)))
        if alone > self._capacity_bytes:
            logger.warning(
                "a success of task %s needs %d bytes, more than replay.capacity_bytes=%d: not stored",
                *(trajectory.task_id, alone, self._capacity_bytes),
            )
            return False
        serial, self._next_serial = self._next_serial, self._next_serial + 1
        shared = tuple(self._acquire(screenshot) for screenshot in trajectory.screenshots)
        trajectory = dataclasses.replace(trajectory, screenshots=shared)
        self._trajectories[serial] = trajectory
        self._num_bytes += trajectory.num_bytes_without_screenshots
        serials = self._serials.setdefault(trajectory.task_id, deque())
        serials.append(serial)
        if len(serials) > self._capacity_per_task:
            self._drop(serials[0])
        while self._num_bytes > self._capacity_bytes:
            self._drop(next(iter(self._trajectories)))
        return True

    def choose(self, task_id: str, rng: random.Random) -> StoredTrajectory | None:
        """One of the task's successes, each as likely as the other; None when there is none."""
        stored = self.of_task(task_id)
        return rng.choice(stored) if stored else None

    def of_task(self, task_id: str) -> tuple[StoredTrajectory, ...]:
        """The task's successes, oldest first."""
        return tuple(self._trajectories[serial] for serial in self._serials.get(task_id, ()))

    def trajectories(self) -> tuple[StoredTrajectory, ...]:
        """All of them, oldest first: adding them in this order to an empty store gives this store again."""
        return tuple(self._trajectories.values())

    def __len__(self) -> int:
        return len(self._trajectories)

    @property
    def num_tasks(self) -> int:
        return len(self._serials)

    @property
    def num_bytes(self) -> int:
        """Bytes held, by CPython's cost of what is stored."""
        return self._num_bytes

    def _drop(self, serial: int) -> None:
        trajectory = self._trajectories.pop(serial)
        serials = self._serials[trajectory.task_id]
        serials.popleft()  # the oldest of all is the oldest of its task, too
        if not serials:
            del self._serials[trajectory.task_id]
        self._num_bytes -= trajectory.num_bytes_without_screenshots
        for screenshot in trajectory.screenshots:
            self._release(screenshot)

    def _acquire(self, screenshot: bytes) -> bytes:
        shared = self._screenshots.get(screenshot)
        if shared is None:
            shared = self._screenshots[screenshot] = _Shared(screenshot)
            self._num_bytes += len(screenshot)
        shared.references += 1
        return shared.content

    def _release(self, screenshot: bytes) -> None:
        shared = self._screenshots[screenshot]
        shared.references -= 1
        if not shared.references:
            del self._screenshots[screenshot]
            self._num_bytes -= len(screenshot)


@dataclass
class _Shared:
    """A screenshot and how often the stored trajectories hold it."""

    content: bytes
    references: int = 0
