"""The one patch of the trainer: what nobody recorded log-probs of is left alone by veRL's own rollout correction.

A batch has log-probs in all of its rows or in none, so the row of a demonstration carries zeros, as if its maker had
been certain of every token, and `algorithm.rollout_correction` would weigh each by the policy's own probability of it:
where they are rare, by next to nothing. Not known is not certain: such a row is taken as if the policy that scores it
had written it, with a ratio of 1, as without a correction. There is no plugin point between scoring and correction:
veRL 0.9.1, `trainer/ppo/v1/trainer_base.py: PPOTrainer._compute_advantage`, "2. Compute rollout correction".
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from arpo_verl.replay.labels import labelled_rows

_FUNCTION = "compute_rollout_correction_and_add_to_batch"


def leave_unknown_log_probs_alone(trainer_base: ModuleType) -> None:
    """Patch the name under which the module of the trainer calls the correction; safe to call more than once."""
    correct = getattr(trainer_base, _FUNCTION)
    if hasattr(correct, "__wrapped__"):
        return

    @functools.wraps(correct)
    def correct_known(batch: Any, *args: Any, **kwargs: Any) -> Any:
        labels = labelled_rows(batch.non_tensor_batch.get("uid", ()))
        unknown = [row for row, label in labels.items() if not label.has_log_probs]
        if unknown:
            log_probs = batch.batch["rollout_log_probs"].clone()
            log_probs[unknown] = batch.batch["old_log_probs"][unknown].to(log_probs.dtype)
            batch.batch["rollout_log_probs"] = log_probs
        return correct(batch, *args, **kwargs)

    setattr(trainer_base, _FUNCTION, correct_known)
