"""List options that earlier checkouts had, and why they were removed. A recipe that names one is refused with this."""

from __future__ import annotations

from collections.abc import Mapping

_RESUME = "it belonged to replay.mode=resume"
_NO_BETTER = "our study found no difference from the default (docs/learning.md)"
_STORE = "the store holds capacity_per_task successes a task in memory, oldest dropped first, as in the paper"
_UNTRIED = "no study and no recipe needed a value other than the default"
_CREDIT = "in our study it was not significantly better than without; docs/advantages.md shows how to add an estimator"

_SAMPLER = "trainer.v1.sampler.sampler_kwargs"
_COPIES = {
    "algorithm.replay": "replay",
    "data.tasks.frontier.group_size": "actor_rollout_ref.rollout.n",
    f"{_SAMPLER}.batch": "actor_rollout_ref.actor.ppo_mini_batch_size and actor_rollout_ref.rollout.n",
    f"{_SAMPLER}.custom_chat_template": "actor_rollout_ref.model.custom_chat_template",
    f"{_SAMPLER}.environment": "environment",
    f"{_SAMPLER}.filter_groups": "algorithm.filter_groups",
    f"{_SAMPLER}.gui_agent": "gui_agent",
    f"{_SAMPLER}.loggers": "trainer.logger",
    f"{_SAMPLER}.mm_processor_kwargs": "data.mm_processor_kwargs",
    f"{_SAMPLER}.model_path": "actor_rollout_ref.model.path",
    f"{_SAMPLER}.replay": "replay",
    f"{_SAMPLER}.resume": "trainer.default_local_dir, trainer.resume_mode and trainer.resume_from_path",
    f"{_SAMPLER}.step_credit": "algorithm.step_credit",
    f"{_SAMPLER}.sync_refill_failed_groups": "trainer.v1.sampler.sync_refill_failed_groups",
    f"{_SAMPLER}.tokenizer_path": "actor_rollout_ref.model.tokenizer_path",
    f"{_SAMPLER}.trust_remote_code": "actor_rollout_ref.model.trust_remote_code",
}

_FAMILY = "gui_agent.model_family sets prompt and grammar together, such as ui_tars_15 or qwen3_vl"

REMOVED: Mapping[str, str] = {
    "gui_agent.grammar": _FAMILY,
    "gui_agent.prompt": f"{_FAMILY}; instead of compact use small",
    "algorithm.step_credit": _CREDIT,
    "replay.capacity_bytes": _STORE,
    "replay.choice": _NO_BETTER,
    "replay.correction": f"{_NO_BETTER}; veRL's own algorithm.rollout_correction weighs all rows, also replays",
    "replay.correction_bound": "it belonged to replay.correction",
    "replay.epsilon": _UNTRIED,
    "replay.eviction": _STORE,
    "replay.max_age_steps": _UNTRIED,
    "replay.max_replays": _UNTRIED,
    "replay.max_share": _UNTRIED,
    "replay.memory_bytes": _STORE,
    "replay.mode": "rollouts that began within a success ended 25 points below injected successes (docs/learning.md)",
    "replay.probability": _UNTRIED,
    "replay.resume_after": _RESUME,
    "replay.resume_solved": _RESUME,
    "replay.resume_stride": _RESUME,
    "replay.resume_tolerance": _RESUME,
    "replay.screenshot_encoding": "screenshots are kept as the desktop sent them",
    "replay.spill_dir": _STORE,
    "replay.trigger": _UNTRIED,
    **{copy: f"it was a copy of {original}" for copy, original in _COPIES.items()},
}


def removal(name: str) -> str | None:
    """Return the message about a removed option, or about an option within one; None for any other name.

    Args:
        name: the full name of an option.
    """
    gone = next((known for known in REMOVED if f"{name}.".startswith(f"{known}.")), None)
    return gone and f"{gone} was removed: {REMOVED[gone]}; leave it out"
