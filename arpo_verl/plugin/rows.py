"""Return a batch's rows from the agent loop, read them from TransferQueue, and rebuild the rows of past successes.

veRL's `AgentLoopWorkerTQ._agent_loop_postprocess` writes a row under `{uid}_{session}_{index}`. A rebuilt row is
bit-identical to the rollout's: it goes through veRL's own functions, on the same screenshot bytes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics

from arpo_verl.errors import ConfigError, ReplayError
from arpo_verl.plugin import queue
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.plugin.queue import Batch, plain
from arpo_verl.replay.groups import Outcome, episode_of, row_key, uid_of
from arpo_verl.replay.labels import REPLAYED, RowLabel
from arpo_verl.replay.methods.base import Replay
from arpo_verl.replay.rules import task_content
from arpo_verl.replay.store.record import STEPS_END
from arpo_verl.replay.trajectory import RowSpan, StoredRow, StoredTrajectory
from arpo_verl.types import EpisodeId

SCREENSHOTS = "screenshots"
"""Name of the column."""
FIRST_SCREENSHOT = "first_screenshot"
"""Name in `extra_fields`: number of the first of its episode's screenshots that a row shows, if it is not 0."""
_OUTCOME_FIELDS = ("task_id", "success", "format_error", "stop_reason", "num_turns")
_TRAJECTORY_FIELDS = ["prompts", "responses", "response_mask", "rollout_log_probs", "num_turns", "mm_processor_kwargs"]
# Per-token fields of other veRL features that a stored trajectory lacks. Left in place, they would silently belong to
# another sequence.
_UNSUPPORTED_FIELDS = ["routed_experts", "teacher_ids", "teacher_logprobs"]


class GuiAgentOutput(AgentLoopOutput):
    """One row of an episode: veRL's own output, with the episode's screenshots as a column.

    They have a column of their own, since the sampler reads `extra_fields` for every batch, and veRL at every
    validation, and both need only its few scalars. `AgentLoopOutput.as_dict()` also takes the fields of a subclass
    (veRL 0.9.1, `trainer/ppo/v1/agent_loop_tq.py: _agent_loop_postprocess`).
    """

    screenshots: list[bytes]
    """The desktop's files, in order. Screenshots that an earlier row shows are left out, so that each is kept once."""


def shows_from(number: int) -> dict[str, int]:
    """Return the extra field of a row that begins with the screenshot of this number."""
    return {FIRST_SCREENSHOT: number} if number else {}


def read_outcomes(keys: Sequence[str], partition_id: str) -> list[Outcome]:
    """Return the outcomes of the rollouts that these rows belong to, in their order.

    Raises:
        ReplayError: another agent loop wrote the rows, or they have no reward, or some are missing.
        ConfigError: a reward is not finite; it comes from another agent loop, or from a reward model.
    """
    if not keys:
        return []
    episodes = _rows_by_episode(keys)
    last = [rows[-1] for rows in episodes.values()]
    data = queue.read(last, partition_id, ["extra_fields", "rm_scores", "extra_info"])
    if "rm_scores" not in data.keys():
        raise ReplayError(
            "replay needs the reward when it samples, but the rows have no rm_scores; "
            "let the agent loop set reward_score instead of a colocated reward model"
        )
    tasks = data["extra_info"] if "extra_info" in data.keys() else [{}] * len(last)
    rows = zip(episodes.items(), data["extra_fields"], data["rm_scores"], tasks, strict=True)
    return [
        _outcome(key, len(of), plain(extra_fields), float(scores.sum()), plain(task))
        for (key, of), extra_fields, scores, task in rows
    ]


def _rows_by_episode(keys: Sequence[str]) -> dict[str, list[str]]:
    """Return the rows in order, by the key of the first."""
    numbers: dict[str, set[int]] = {}
    for key in keys:
        numbers.setdefault(episode_of(key), set()).add(int(key.rsplit("_", 1)[1]))
    for episode, of in numbers.items():
        if of != set(range(len(of))):
            raise ReplayError(f"an episode's rows must be numbered from 0, got {sorted(of)} of {episode}")
    return {episode: [row_key(episode, number) for number in sorted(of)] for episode, of in numbers.items()}


def _outcome(
    key: str, num_rows: int, extra_fields: Mapping[str, Any], reward: float, task: Mapping[str, Any]
) -> Outcome:
    """Return a rollout's outcome; `task` is the `extra_info` of its dataset row."""
    missing = [name for name in _OUTCOME_FIELDS if name not in extra_fields]
    if missing:
        raise ReplayError(
            f"row {key} must carry {', '.join(_OUTCOME_FIELDS)} in extra_fields, but {', '.join(missing)} is missing; "
            "train with the agent loop `gui_agent`, let yours record them, or start again if another version saved it"
        )
    success = float(extra_fields["success"])
    if not math.isfinite(reward) or not math.isfinite(success):
        raise ConfigError(
            f"reward and success must be finite numbers, got {reward} and {success} for task {extra_fields['task_id']} "
            f"(row {key}): all advantages of its group would be NaN; correct the agent loop or reward model that gave "
            "them"
        )
    return Outcome(
        key=key,
        task_id=str(extra_fields["task_id"]),
        success=success,
        reward=reward,
        format_error=bool(extra_fields["format_error"]),
        stop_reason=str(getattr(extra_fields["stop_reason"], "value", extra_fields["stop_reason"])),
        num_turns=int(extra_fields["num_turns"]),
        num_rows=num_rows,
        drawn=drawn if isinstance(drawn := task.get("draw", task.get("index")), int) else 0,
        task_content=task_content(str(task.get("instruction")), task.get("spec")),
    )


def read_trajectories(
    outcomes: Sequence[Outcome], partition_id: str, step: int, drawn_in: Mapping[str, int] | None = None
) -> list[StoredTrajectory]:
    """Read the named rollouts as trajectories to store.

    Args:
        step: the training step that trains on them.
        drawn_in: the step in which a row's prompt was drawn, by key, if it was another.
    """
    if not outcomes:
        return []
    keys = [key for outcome in outcomes for key in outcome.rows]
    data = queue.read(keys, partition_id, ["extra_fields", SCREENSHOTS, *_TRAJECTORY_FIELDS])
    if SCREENSHOTS not in data.keys():
        raise ReplayError(
            f"a success must have its {SCREENSHOTS} in a column of its row, but {keys[0]} has none; train with the "
            "agent loop `gui_agent`, or let yours return a GuiAgentOutput"
        )
    columns = {name: [plain(value) for value in data[name]] for name in data.keys()}
    rows = dict(
        zip(keys, (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)), strict=True)
    )
    return [
        _trajectory(
            outcome,
            [rows[key] for key in outcome.rows],
            step,
            EpisodeId((drawn_in or {}).get(outcome.key, step), outcome.uid, outcome.session),
        )
        for outcome in outcomes
    ]


def _trajectory(outcome: Outcome, rows: Sequence[Mapping[str, Any]], step: int, episode: EpisodeId) -> StoredTrajectory:
    screenshots: list[bytes] = []
    stored = []
    log_probs = [row.get("rollout_log_probs") for row in rows]
    # An engine that reports NaN has reported nothing.
    is_told = all(values is not None and bool(torch.isfinite(values).all()) for values in log_probs)
    for row in rows:
        screenshots += row[SCREENSHOTS]
        stored.append(
            StoredRow(
                prompt_ids=row["prompts"].tolist(),
                response_ids=row["responses"].tolist(),
                response_mask=row["response_mask"].tolist(),
                rollout_log_probs=row["rollout_log_probs"].tolist() if is_told else None,
                screenshots=range(int(row["extra_fields"].get(FIRST_SCREENSHOT, 0)), len(screenshots)),
            )
        )
    last = rows[-1]
    return StoredTrajectory.of_rows(
        stored,
        task_id=outcome.task_id,
        task_content=outcome.task_content,
        step=step,
        success=outcome.success,
        reward=outcome.reward,
        screenshots=screenshots,
        num_turns=int(last.get("num_turns", 0)),
        extra_fields={name: value for name, value in last["extra_fields"].items() if name != FIRST_SCREENSHOT},
        mm_processor_kwargs=last.get("mm_processor_kwargs"),
        episode=episode,
    )


def rebuild_rows(trajectory: StoredTrajectory, inputs: ModelInputs) -> Iterator[dict[str, Any]]:
    """Yield the fields of the trajectory's own rows, as the rollout wrote them.

    `rollout_log_probs` stay those of the policy that wrote it. veRL scores every row again before the update, so the
    clipped ratio starts at 1 as in the reference, and `algorithm.rollout_correction` weighs a replayed row by its true
    distance. The other fields of a row come from the task, not from the trajectory.
    """
    seen = 0
    for row in trajectory.each_row():
        new, seen = trajectory.screenshots[seen : row.screenshots.stop], row.screenshots.stop
        output = GuiAgentOutput(
            prompt_ids=list(row.prompt_ids),
            response_ids=list(row.response_ids),
            response_mask=list(row.response_mask),
            response_logprobs=None if row.rollout_log_probs is None else list(row.rollout_log_probs),
            reward_score=trajectory.reward,
            num_turns=trajectory.num_turns,
            metrics=AgentLoopMetrics(),
            extra_fields={**copy.deepcopy(dict(trajectory.extra_fields)), **shows_from(row.screenshots.start)},
            screenshots=list(new),
        )
        if trajectory.mm_processor_kwargs is not None:
            output.mm_processor_kwargs = dict(trajectory.mm_processor_kwargs)
        fields = output.as_dict()
        for name in ("multi_modal_data", "metrics"):  # veRL drops the first; the second has the rollout's own times
            fields.pop(name, None)
        fields["input_ids"] = torch.cat([fields["prompts"], fields["responses"]])
        fields["loss_mask"] = fields["response_mask"]
        shown = [trajectory.screenshots[number] for number in row.screenshots]
        fields["multi_modal_inputs"], fields["position_ids"] = inputs.compute(
            shown, fields["input_ids"], trajectory.mm_processor_kwargs
        )
        yield fields


def replay_tag(tag: Mapping[str, Any], trajectory: StoredTrajectory, row: RowSpan) -> dict[str, Any]:
    """Return the tag of a replayed row: the failing row's, with the replayed row's lengths and policy versions.

    The versions let veRL's `training/off_policy/trajectory_staleness` show how old replays are. `global_steps` stays:
    it says when the prompt was drawn.
    """
    versions = {
        name: version
        for name in ("min_global_steps", "max_global_steps")
        if type(version := trajectory.extra_fields.get(name)) is int and 0 <= version < STEPS_END
    }
    lengths = {
        "prompt_len": row.prompt_tokens,
        "response_len": row.response_tokens,
        "seq_len": row.prompt_tokens + row.response_tokens,
    }
    return {**tag, **lengths, **versions, REPLAYED: True}


def inject(batch: Batch, replay: Replay, trajectory: StoredTrajectory, rows: Iterable[Mapping[str, Any]]) -> Batch:
    """Put the trajectory's rows in the place of the replay's outcome, or before it, in the queue and in the batch.

    Args:
        rows: the new fields, from `rebuild_rows`. Their number may differ from the outcome's.

    Returns:
        The batch with them. None of its rows contains a rollout that was replaced.

    Raises:
        ReplayError: the row has fields of veRL features that replay does not support.
    """
    outcome, replaced = replay.outcome, replay.outcome.rows if replay.added is None else ()
    names = ["rm_scores", "rollout_log_probs", *_UNSUPPORTED_FIELDS]
    present = queue.read([outcome.key], batch.partition_id, names).keys()
    unsupported = [name for name in _UNSUPPORTED_FIELDS if name in present]
    if unsupported:
        raise ReplayError(
            f"row {outcome.key} carries {', '.join(unsupported)}, which stored trajectories do not have; "
            "turn router replay or distillation off, or set replay.enable=false"
        )
    of_task: dict[str, Any] = {}
    if len(trajectory.rows) > len(replaced):  # added rows take the task's fields from the first row
        first = queue.read([outcome.key], batch.partition_id)[0]
        of_task = {name: first[name] for name in first.keys()}
    position = batch.keys.index(outcome.key)
    tag = batch.tags[position]
    new: dict[str, dict[str, Any]] = {}
    for number, (span, own) in enumerate(zip(trajectory.rows, rows, strict=True)):
        key = row_key(replay.key, number)
        fields = {**own, "extra_fields": {**own["extra_fields"], REPLAYED: trajectory.step}}
        # All rows of a batch have log-probs, or none. Zeros stand for those that nobody recorded.
        log_probs = fields.pop("rollout_log_probs", torch.zeros(span.response_tokens))
        if "rollout_log_probs" in present:
            fields["rollout_log_probs"] = log_probs
        new[key] = replay_tag(tag, trajectory, span)
        is_added = number >= len(replaced)
        queue.write([key], batch.partition_id, [{**of_task, **fields} if is_added else fields], [new[key]])
    surplus = [key for key in replaced if key not in new]
    if surplus:
        queue.clear(surplus, batch.partition_id)
    left = {key: tag for key, tag in zip(batch.keys, batch.tags, strict=True) if key not in replaced}
    before, after = ([key for key in keys if key in left] for keys in (batch.keys[:position], batch.keys[position:]))
    return queue.rebatch(batch, [*before, *new, *after], {**left, **new})


def label(
    batch: Batch, replays: Mapping[str, StoredTrajectory], advantages: Mapping[str, float | None] | None = None
) -> None:
    """Write into each row's `uid` which row it is, for the estimator.

    Args:
        replays: the trajectories that were injected, by the key of the episode's first row.
        advantages: those that the replay method gave them, by the same key.
    """
    labels = []
    for key in batch.keys:
        replay = replays.get(episode_of(key))
        has_log_probs = replay is None or replay.rollout_log_probs is not None
        advantage = (advantages or {}).get(episode_of(key))
        labels.append(RowLabel(uid_of(key), key, replay is not None, has_log_probs, advantage))
    queue.write(batch.keys, batch.partition_id, [{"uid": label} for label in labels])
