"""Replace veRL's functions where it has no plugin point; `upstream_patches.py` says which and why."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from arpo_verl.plugin.trainer_watch import TrainerEngines, in_words, is_death
from arpo_verl.replay.labels import labelled_rows
from arpo_verl.upstream_patches import EQUAL_LENGTHS, ROLLOUT_CORRECTION, SHARED_ENCODER, TASK_ORDER

logger = logging.getLogger(__name__)

_POSITION_IDS = "position_ids"
_CALLS = {
    "sleep_replicas": "sleep",
    "abort_replicas": "abort_all_requests",
    "resume_generation_replicas": "resume_generation",
}
"""Methods of veRL's `CheckpointEngineManager`, and the method of each replica that they call."""


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


def survive_lost_engines(name: str, stock: Any) -> Any:
    """Make one of veRL's calls to all rollout engines skip dead engines.

    veRL puts its engines to sleep, trains, saves, and gives the engines new weights. These calls have no hook, and each
    fails if one engine fails (0.9.1, `checkpoint_engine/base.py: CheckpointEngineManager`). Ours skip a dead engine,
    and end the run where the weights would be updated.

    Args:
        name: the method's name.
        stock: veRL's method.
    """
    from verl.utils.ray_utils import auto_await

    method = stock.__wrapped__  # inside veRL's own `auto_await`
    return auto_await(_on_each(method, _CALLS[name]) if name in _CALLS else _unless_lost(method))


def _engines() -> TrainerEngines:
    from arpo_verl.plugin.trainer_state import running_state  # only the trainer's process needs it

    return running_state().engines


_Method = Callable[..., Coroutine[Any, Any, Any]]


def _on_each(stock: _Method, call: str) -> _Method:
    """Call all replicas. One that died or does not answer is lost and skipped."""

    @functools.wraps(stock)
    async def on_each(manager: Any, **kwargs: Any) -> None:
        engines = _engines()
        if not engines.is_watching:
            await stock(manager, **kwargs)
            return
        if engines.is_ending:
            return
        calls = [asyncio.wait_for(getattr(replica, call)(**kwargs), engines.timeout_s) for replica in manager.replicas]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for replica, outcome in zip(manager.replicas, outcomes, strict=True):
            if isinstance(outcome, TimeoutError):
                engines.lose(replica, f"it did not end `{call}` in {engines.timeout_s:g} s")
            elif isinstance(outcome, BaseException):
                if not is_death(outcome):
                    raise outcome
                engines.lose(replica, in_words(outcome))

    return on_each


def _unless_lost(stock: _Method) -> _Method:
    """Update the weights, or end the run if an engine is lost."""

    @functools.wraps(stock)
    async def update_weights(manager: Any, global_steps: int | None = None) -> dict[str, Any]:
        engines = _engines()
        await engines.find_dead(manager.replicas)
        if engines.lost():
            engines.end_run()
            return {}
        metrics: dict[str, Any] = await stock(manager, global_steps)
        return metrics

    return update_weights


def replacement(name: str, upstream: Any) -> Any:
    """Return our version of upstream's function of this name, for `Patch.apply`."""
    if name in ROLLOUT_CORRECTION.names:
        return leave_unknown_log_probs_alone(upstream)
    if name in EQUAL_LENGTHS.names:
        return read_equal_lengths(upstream)
    if name in TASK_ORDER.names:
        return load_order_of_same_tasks(upstream)
    if name in SHARED_ENCODER.names:
        from arpo_verl.plugin.shared_encoder import share_encoder  # only training processes need it

        return share_encoder(upstream)
    return survive_lost_engines(name.rpartition(".")[2], upstream)
