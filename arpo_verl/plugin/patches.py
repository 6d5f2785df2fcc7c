"""Guarded patches of veRL, where it has no plugin point: one of the trainer, one of the workers.

A third, of what the trainer calls all rollout engines by, is in `plugin/engine_loss.py`.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from arpo_verl.replay.labels import labelled_rows

_CORRECTION = "compute_rollout_correction_and_add_to_batch"
_POSITION_FIX = "maybe_fix_3d_position_ids"
_POSITION_IDS = "position_ids"


def leave_unknown_log_probs_alone(trainer_base: ModuleType) -> None:
    """Have veRL's rollout correction leave alone the rows whose log-probs nobody recorded. Safe to call twice.

    A batch has log-probs in all of its rows or in none, so the row of a demonstration carries zeros, as if its maker
    had been certain of every token, and `algorithm.rollout_correction` would weigh each by the policy's own probability
    of it: where they are rare, by next to nothing. Not known is not certain: such a row is taken as if the policy that
    scores it had written it, with a ratio of 1, as without a correction. There is no plugin point between scoring and
    correction: veRL 0.9.1, `trainer/ppo/v1/trainer_base.py: PPOTrainer._compute_advantage`, "2. Compute rollout
    correction".

    Args:
        trainer_base: the module of the trainer, under whose name for the correction it is called.
    """
    correct = getattr(trainer_base, _CORRECTION)
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

    setattr(trainer_base, _CORRECTION, correct_known)


def read_equal_lengths(tensordict_utils: ModuleType) -> None:
    """Have the workers read rows of a vision-language model that are all equally long as they were written.

    TransferQueue puts a field's rows together with `torch.nested.as_nested_tensor`, which takes the first dimension
    that differs for the ragged one. Position ids are (4, T): where every row that a worker reads has the same T, or it
    reads one row alone, none differs, and torch takes the 4. veRL then declares the last one ragged without another
    look (0.9.1, `utils/tensordict_utils.py: maybe_fix_3d_position_ids`), and the worker ends: "split_with_sizes expects
    split_sizes to sum exactly to T". There is no plugin point between the queue and the engine.

    To be called before the engines import the function by name; safe to call twice.
    """
    from verl.utils.tensordict_utils import nested_tensor_from_tensor_list

    fix = getattr(tensordict_utils, _POSITION_FIX)
    if hasattr(fix, "__wrapped__"):
        return

    @functools.wraps(fix)
    def fix_all(data: Any) -> None:
        ids = data.get(_POSITION_IDS, None)
        if ids is not None and ids.is_nested and ids.dim() == 3:
            values, rows = ids.values(), len(ids.offsets()) - 1
            if len(values) == ids.offsets()[-1]:  # one below the other, (4 rows, T); else side by side
                data[_POSITION_IDS] = nested_tensor_from_tensor_list(list(values.chunk(rows)))
        fix(data)

    setattr(tensordict_utils, _POSITION_FIX, fix_all)
