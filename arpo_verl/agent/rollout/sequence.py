"""Keep the rows of an episode: tokens that the policy reads and writes, and which are its own. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from arpo_verl.errors import GenerationError


@dataclass(frozen=True)
class Generated:
    """One reply of the policy: its tokens and, where the engine reports them, their log-probs."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] | None


class EpisodeSequence:
    """One row: prompt (system, instruction, first screenshot), then replies and screenshots in turn.

    An episode has several rows if its history does not fit into one. The prompt of a later row also holds the earlier
    replies and screenshots that it shows. Each reply is generated in one row only.

    `response_mask` is 1 exactly on tokens that the policy generated in this row, its end-of-turn token included.
    `response_log_probs` has the rollout engine's values for these and 0.0 for others; None if the engine gives none.
    """

    def __init__(self, prompt_ids: Sequence[int], screenshots: range = range(1)):
        self.prompt_ids = list(prompt_ids)
        self.screenshots = screenshots
        """Numbers of the episode's screenshots that it shows."""
        self.response_ids: list[int] = []
        self.response_mask: list[int] = []
        self._log_probs: list[float] = []
        self._has_log_probs: bool | None = None

    @property
    def token_ids(self) -> list[int]:
        """All tokens so far: the next reply is generated from them."""
        return self.prompt_ids + self.response_ids

    @property
    def response_log_probs(self) -> list[float] | None:
        return self._log_probs if self._has_log_probs else None

    @property
    def replies(self) -> list[Generated]:
        """The policy's replies in this row, one by one."""
        written = itertools.groupby(range(len(self.response_ids)), key=self.response_mask.__getitem__)
        return [self._reply(list(run)) for is_reply, run in written if is_reply]

    def _reply(self, run: list[int]) -> Generated:
        log_probs = self.response_log_probs
        return Generated(
            tuple(self.response_ids[i] for i in run), None if log_probs is None else tuple(log_probs[i] for i in run)
        )

    def add_reply(self, token_ids: Sequence[int], log_probs: Sequence[float] | None) -> None:
        """Append what the policy generated.

        Raises:
            GenerationError: only some replies have log-probs, or they do not match the tokens.
        """
        has = log_probs is not None
        if self._has_log_probs is None:
            self._has_log_probs = has
        if has != self._has_log_probs or (log_probs is not None and len(log_probs) != len(token_ids)):
            got = "none" if log_probs is None else len(log_probs)
            raise GenerationError(
                f"the rollout engine must give one log-prob for each of the {len(token_ids)} tokens of every reply, "
                f"or none at all, got {got}"
            )
        self._append(token_ids, 1, log_probs)

    def add_context(self, token_ids: Sequence[int], num_screenshots: int) -> None:
        """Append what the policy was shown; it includes so many of the next screenshots."""
        self._append(token_ids, 0, None)
        self.screenshots = range(self.screenshots.start, self.screenshots.stop + num_screenshots)

    def _append(self, token_ids: Sequence[int], mask: int, log_probs: Sequence[float] | None) -> None:
        self.response_ids.extend(token_ids)
        self.response_mask.extend([mask] * len(token_ids))
        self._log_probs.extend(log_probs if log_probs is not None else [0.0] * len(token_ids))
