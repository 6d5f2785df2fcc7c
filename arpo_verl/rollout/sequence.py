"""One episode as one token sequence: what the policy wrote, what it was shown, and which is which. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from arpo_verl.errors import GenerationError


class EpisodeSequence:
    """Prompt (system, instruction, first screenshot), then replies and context in turn.

    `response_mask` is 1 exactly on tokens that the policy generated, its end-of-turn token included.
    `response_log_probs` has the rollout engine's value for these and 0.0 elsewhere; None when the engine gives none.
    """

    def __init__(self, prompt_ids: Sequence[int]):
        self.prompt_ids = list(prompt_ids)
        self.response_ids: list[int] = []
        self.response_mask: list[int] = []
        self._log_probs: list[float] = []
        self._has_log_probs: bool | None = None

    @property
    def token_ids(self) -> list[int]:
        """Everything so far: what the next reply is generated from."""
        return self.prompt_ids + self.response_ids

    @property
    def response_log_probs(self) -> list[float] | None:
        return self._log_probs if self._has_log_probs else None

    def add_reply(self, token_ids: Sequence[int], log_probs: Sequence[float] | None) -> None:
        """Append what the policy generated.

        Raises:
            GenerationError: the log-probs are missing for some replies only, or do not match the tokens.
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

    def add_context(self, token_ids: Sequence[int]) -> None:
        """Append what the policy was shown."""
        self._append(token_ids, 0, None)

    def _append(self, token_ids: Sequence[int], mask: int, log_probs: Sequence[float] | None) -> None:
        self.response_ids.extend(token_ids)
        self.response_mask.extend([mask] * len(token_ids))
        self._log_probs.extend(log_probs if log_probs is not None else [0.0] * len(token_ids))
