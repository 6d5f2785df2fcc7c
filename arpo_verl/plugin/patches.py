"""Replace veRL's functions where it has no plugin point; `engines/upstream_patches.py` says which and why."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from arpo_verl.engines.upstream_patches import EQUAL_LENGTHS, ROLLOUT_CORRECTION, TASK_ORDER
from arpo_verl.replay.labels import labelled_rows

logger = logging.getLogger(__name__)

_POSITION_IDS = "position_ids"


def leave_unknown_log_probs_alone(correct: Callable[..., Any]) -> Callable[..., Any]:
    """Make veRL's rollout correction skip rows whose log-probs nobody recorded.

    All rows of a batch have log-probs, or none. So a demonstration's row carries zeros, as if its author had been
    certain of every token, and `algorithm.rollout_correction` would weigh each token by the policy's own probability:
    rare tokens by almost nothing. We treat such a row as if the policy that scores it had written it, with a ratio
    of 1, as without a correction. There is no plugin point between scoring and correction: veRL 0.9.1,
    `trainer/ppo/v1/trainer_base.py: PPOTrainer._compute_advantage`, "2. Compute rollout correction".

    Args:
        correct: veRL's `compute_rollout_correction_and_add_to_batch`.
    """

    @functools.wraps(correct)
    def correct_known(batch: Any, *args: Any, **kwargs: Any) -> Any:
        labels = labelled_rows(batch.non_tensor_batch.get("uid", ()))
        unknown = [row for row, label in labels.items() if not label.has_log_probs]
        if any(label.is_replay for label in labels.values()) and args:
            from arpo_verl.plugin.trainer_state import trainer_state  # only the trainer has one

            if trainer_state(args[0]).replay_method.needs_log_probs:  # the method's own weight is the whole correction
                unknown = [row for row, label in labels.items() if label.is_replay or not label.has_log_probs]
        if unknown:
            log_probs = batch.batch["rollout_log_probs"].clone()
            log_probs[unknown] = batch.batch["old_log_probs"][unknown].to(log_probs.dtype)
            batch.batch["rollout_log_probs"] = log_probs
        return correct(batch, *args, **kwargs)

    return correct_known


def read_equal_lengths(fix: Callable[[Any], None]) -> Callable[[Any], None]:
    """Let workers correctly read rows of a vision-language model that all have the same length.

    TransferQueue joins a field's rows with `torch.nested.as_nested_tensor`, which takes the first dimension that
    differs as the ragged one. Position ids are (4, T). If all rows that a worker reads have the same T, or it reads
    only one row, none differs, and torch takes the 4. veRL then declares the last dimension ragged without checking
    (0.9.1, `utils/tensordict_utils.py: maybe_fix_3d_position_ids`), and the worker ends: "split_with_sizes expects
    split_sizes to sum exactly to T". There is no plugin point between the queue and the engine.

    Args:
        fix: veRL's `maybe_fix_3d_position_ids`.
    """
    from verl.utils.tensordict_utils import nested_tensor_from_tensor_list

    @functools.wraps(fix)
    def fix_all(data: Any) -> None:
        ids = data.get(_POSITION_IDS, None)
        if ids is not None and ids.is_nested and ids.dim() == 3:
            values, rows = ids.values(), len(ids.offsets()) - 1
            if len(values) == ids.offsets()[-1]:  # stacked as (4 rows, T); otherwise side by side
                data[_POSITION_IDS] = nested_tensor_from_tensor_list(list(values.chunk(rows)))
        fix(data)

    return fix_all


def load_order_of_same_tasks(load: Callable[[Any, dict[str, Any]], None]) -> Callable[[Any, dict[str, Any]], None]:
    """Continue a checkpoint's order of tasks only if this run has the same order.

    veRL makes loader and sampler itself and loads the state in `data.pt` into the loader, whatever the tasks are now
    (0.9.1, `trainer/ppo/v1/trainer_base.py: PPOTrainer._load_checkpoint`, "4. load dataloader checkpoint"). The state
    is a number of rows, and the order a permutation of their numbers. With fewer rows the sampler ends in an empty
    `StopIteration`; with others it plays some twice and others never. The dataset is asked only after the sampler.

    Args:
        load: `StatefulDataLoader.load_state_dict`.
    """

    @functools.wraps(load)
    def load_same(loader: Any, state_dict: dict[str, Any]) -> None:
        order_change = getattr(loader.dataset, "order_change", None)  # only our dataset has it
        change = "" if order_change is None else order_change()
        if not change:
            load(loader, state_dict)
            return
        loader.dataset.load_state_dict(state_dict.get("dataset_state") or {})
        logger.warning("the order of tasks begins anew: %s", change)

    return load_same


def replacement(name: str, upstream: Any) -> Any:
    """Return our version of upstream's function of this name, for `Patch.apply`."""
    if name in ROLLOUT_CORRECTION.names:
        return leave_unknown_log_probs_alone(upstream)
    if name in EQUAL_LENGTHS.names:
        return read_equal_lengths(upstream)
    if name in TASK_ORDER.names:
        return load_order_of_same_tasks(upstream)
    from arpo_verl.plugin.shared_encoder import share_encoder  # only training processes need it

    return share_encoder(upstream)
