"""Between TransferQueue's rows and the replay's own types: read what a rollout came to, rebuild a past success's row.

A row is what `AgentLoopWorkerTQ._agent_loop_postprocess` of veRL puts under `{uid}_{session}_{index}`. A rebuilt row is
bit-identical to the one that the rollout put there: it goes through veRL's own functions, on the same screenshot bytes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics

from arpo_verl.errors import ReplayError
from arpo_verl.plugin import queue
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.plugin.queue import Batch, plain
from arpo_verl.plugin.rollout_output import SCREENSHOTS, GuiAgentOutput
from arpo_verl.replay.choice import Outcome, uid_of
from arpo_verl.replay.labels import REPLAYED, RowLabel
from arpo_verl.replay.store.success_store import StoredTrajectory
from arpo_verl.rollout.vision import decode_screenshot
from arpo_verl.types import EpisodeId

_OUTCOME_FIELDS = ("task_id", "success", "format_error", "stop_reason", "num_steps")
_TRAJECTORY_FIELDS = ["prompts", "responses", "response_mask", "rollout_log_probs", "num_turns", "mm_processor_kwargs"]
# Per-token fields of other veRL features that a stored trajectory does not carry: left in place they would silently
# belong to another sequence.
_UNSUPPORTED_FIELDS = ["routed_experts", "teacher_ids", "teacher_logprobs"]


def read_outcomes(keys: Sequence[str], partition_id: str) -> list[Outcome]:
    """What the rollouts of these rows came to, in their order.

    Raises:
        ReplayError: the rows were not put there by arpo_verl's agent loop, or carry no reward.
    """
    if not keys:
        return []
    data = queue.read(keys, partition_id, ["extra_fields", "rm_scores"])
    if "rm_scores" not in data.keys():
        raise ReplayError(
            "replay needs the reward when it samples, but the rows have no rm_scores; "
            "let the agent loop set reward_score instead of a colocated reward model"
        )
    rows = zip(keys, data["extra_fields"], data["rm_scores"], strict=True)
    return [_outcome(key, plain(extra_fields), float(scores.sum())) for key, extra_fields, scores in rows]


def _outcome(key: str, extra_fields: Mapping[str, Any], reward: float) -> Outcome:
    missing = [name for name in _OUTCOME_FIELDS if name not in extra_fields]
    if missing:
        raise ReplayError(
            f"row {key} must carry {', '.join(_OUTCOME_FIELDS)} in extra_fields, but {', '.join(missing)} is missing; "
            "train with the agent loop `gui_agent`, or let yours record them"
        )
    if not key.endswith("_0"):
        raise ReplayError(f"a session must give one trajectory, got the row {key}; give one AgentLoopOutput an episode")
    return Outcome(
        key=key,
        task_id=str(extra_fields["task_id"]),
        success=float(extra_fields["success"]),
        reward=reward,
        format_error=bool(extra_fields["format_error"]),
        stop_reason=str(getattr(extra_fields["stop_reason"], "value", extra_fields["stop_reason"])),
        num_steps=int(extra_fields["num_steps"]),
    )


def read_trajectories(
    outcomes: Sequence[Outcome], partition_id: str, step: int, drawn_in: Mapping[str, int] | None = None
) -> list[StoredTrajectory]:
    """The named rows as trajectories to store.

    Args:
        step: the training step that trains on them.
        drawn_in: by key, the step in which the row's prompt was drawn, where it was another.
    """
    if not outcomes:
        return []
    keys = [outcome.key for outcome in outcomes]
    data = queue.read(keys, partition_id, ["extra_fields", SCREENSHOTS, *_TRAJECTORY_FIELDS])
    if SCREENSHOTS not in data.keys():
        raise ReplayError(
            f"a success must have its {SCREENSHOTS} in a column of its row, but {keys[0]} has none; train with the "
            "agent loop `gui_agent`, or let yours return a GuiAgentOutput"
        )
    columns = {name: [plain(value) for value in data[name]] for name in data.keys()}
    return [
        _trajectory(
            outcome,
            {name: column[row] for name, column in columns.items()},
            step,
            EpisodeId((drawn_in or {}).get(outcome.key, step), outcome.uid, outcome.session),
        )
        for row, outcome in enumerate(outcomes)
    ]


def _trajectory(outcome: Outcome, row: Mapping[str, Any], step: int, episode: EpisodeId) -> StoredTrajectory:
    log_probs = row.get("rollout_log_probs")
    return StoredTrajectory(
        task_id=outcome.task_id,
        step=step,
        success=outcome.success,
        reward=outcome.reward,
        prompt_ids=tuple(row["prompts"].tolist()),
        response_ids=tuple(row["responses"].tolist()),
        response_mask=tuple(row["response_mask"].tolist()),
        rollout_log_probs=None if log_probs is None else tuple(log_probs.tolist()),
        screenshots=tuple(row[SCREENSHOTS]),
        num_turns=int(row.get("num_turns", 0)),
        extra_fields=dict(row["extra_fields"]),
        mm_processor_kwargs=row.get("mm_processor_kwargs"),
        episode=episode,
    )


def rebuild_fields(trajectory: StoredTrajectory, inputs: ModelInputs) -> dict[str, Any]:
    """The trajectory's own fields of a row, as the rollout that made it wrote them.

    `rollout_log_probs` stay those of the policy that made it: veRL scores every row anew before the update, so the
    clipped ratio starts at 1 as in the reference, and where `algorithm.rollout_correction` weighs off-policy rows, a
    replayed one is weighed by its true distance. The other fields of a row come from the task, not the trajectory.
    """
    screenshots = list(trajectory.screenshots)
    images = [decode_screenshot(screenshot) for screenshot in screenshots]
    output = GuiAgentOutput(
        prompt_ids=list(trajectory.prompt_ids),
        response_ids=list(trajectory.response_ids),
        response_mask=list(trajectory.response_mask),
        response_logprobs=None if trajectory.rollout_log_probs is None else list(trajectory.rollout_log_probs),
        multi_modal_data={"images": images} if images else {},
        reward_score=trajectory.reward,
        num_turns=trajectory.num_turns,
        metrics=AgentLoopMetrics(),
        extra_fields=copy.deepcopy(dict(trajectory.extra_fields)),
        screenshots=screenshots,
    )
    if trajectory.mm_processor_kwargs is not None:
        output.mm_processor_kwargs = dict(trajectory.mm_processor_kwargs)
    fields = output.as_dict()
    for name in ("multi_modal_data", "metrics"):  # veRL drops the first; the second is how long this rollout took
        fields.pop(name, None)
    fields["input_ids"] = torch.cat([fields["prompts"], fields["responses"]])
    fields["loss_mask"] = fields["response_mask"]
    fields["multi_modal_inputs"], fields["position_ids"] = inputs.compute(output, fields["input_ids"])
    return fields


def replay_tag(tag: Mapping[str, Any], trajectory: StoredTrajectory) -> dict[str, Any]:
    """The failing row's tag, with the replayed trajectory's lengths and the policy versions that made it.

    The versions make veRL's `training/off_policy/trajectory_staleness` tell how old replays are. `global_steps` stays:
    it says when the prompt was drawn.
    """
    prompt_len, response_len = len(trajectory.prompt_ids), len(trajectory.response_ids)
    versions = {
        name: trajectory.extra_fields[name]
        for name in ("min_global_steps", "max_global_steps")
        if name in trajectory.extra_fields
    }
    lengths = {"prompt_len": prompt_len, "response_len": response_len, "seq_len": prompt_len + response_len}
    return {**tag, **lengths, **versions, REPLAYED: True}


def inject(batch: Batch, key: str, trajectory: StoredTrajectory, fields: Mapping[str, Any]) -> None:
    """Put the trajectory where the row `key` is, in the queue and in `batch`'s tag.

    Args:
        fields: as `rebuild_fields` made them.

    Raises:
        ReplayError: the row has fields of veRL features that replay does not support.
    """
    present = queue.read([key], batch.partition_id, ["rm_scores", "rollout_log_probs", *_UNSUPPORTED_FIELDS]).keys()
    unsupported = [name for name in _UNSUPPORTED_FIELDS if name in present]
    if unsupported:
        raise ReplayError(
            f"row {key} carries {', '.join(unsupported)}, which no stored trajectory has; "
            "turn router replay or distillation off, or set replay.enable=false"
        )
    fields = {**fields, "extra_fields": {**fields["extra_fields"], REPLAYED: trajectory.step}}
    # A batch has log-probs in all of its rows or in none: zeros stand where nobody recorded them.
    log_probs = fields.pop("rollout_log_probs", torch.zeros(len(trajectory.response_ids)))
    if "rollout_log_probs" in present:
        fields["rollout_log_probs"] = log_probs
    position = batch.keys.index(key)
    tag = replay_tag(batch.tags[position], trajectory)
    queue.write([key], batch.partition_id, [fields], [tag])
    batch.tags[position] = tag


def label(batch: Batch, replays: Mapping[str, StoredTrajectory]) -> None:
    """Put into each row's `uid` which row it is, for the estimator.

    Args:
        replays: by key, the trajectory that was written there.
    """
    labels = [
        RowLabel(
            uid_of(key),
            key,
            is_replay=key in replays,
            has_log_probs=key not in replays or replays[key].rollout_log_probs is not None,
        )
        for key in batch.keys
    ]
    queue.write(batch.keys, batch.partition_id, [{"uid": label} for label in labels])
