"""Make rows of episodes and of past successes, and EasyR1's batch of a step's rows.

EasyR1's workers keep a row's pixels under its `uid`, which is the same for all rollouts of a task in stock EasyR1. So
each of our rows has its own uid, `{group}_{session}_0`, whose group the estimator reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.episode import Episode
from arpo_verl.agent.rollout.scoring import Score
from arpo_verl.easyr1 import stock
from arpo_verl.easyr1.engine import UNRESIZED, as_objects
from arpo_verl.easyr1.images import FILE, model_file
from arpo_verl.errors import ReplayError
from arpo_verl.lib.images import image_size
from arpo_verl.replay.groups import Outcome
from arpo_verl.replay.rules import task_content
from arpo_verl.replay.trajectory import StoredRow, StoredTrajectory
from arpo_verl.types import EpisodeId


@dataclass(frozen=True)
class Row:
    """A row of a batch has a whole episode's tokens."""

    prompt_ids: Sequence[int] = field(repr=False)
    response_ids: Sequence[int] = field(repr=False)
    response_mask: Sequence[int] = field(repr=False)
    """1 for the policy's own tokens. A row of zeros is not trained on."""
    reward: float
    files: Sequence[bytes] = field(repr=False)
    """Its screenshots, in the model's size."""

    @classmethod
    def of_episode(cls, episode: Episode, score: Score) -> Row:
        """Return the row of an episode."""
        (row,) = episode.rows
        files = [image.info[FILE] for image in episode.images]
        return cls(row.prompt_ids, row.response_ids, row.response_mask, score.reward, files)

    @classmethod
    def of_trajectory(cls, trajectory: StoredTrajectory, chat: ChatTokenizer) -> Row:
        """Return the row of a past success.

        Raises:
            ReplayError: the success has several rows, which other trainers allow.
        """
        if len(trajectory.rows) != 1:
            raise ReplayError(
                f"a success of task {trajectory.task_id} must be one row, got {len(trajectory.rows)}; use a store "
                "that was made with gui_agent.context=full"
            )
        files = [model_file(screenshot, chat.geometry) for screenshot in trajectory.screenshots]
        prompt, response = list(trajectory.prompt_ids), list(trajectory.response_ids)
        return cls(prompt, response, list(trajectory.response_mask), trajectory.reward, files)

    @classmethod
    def of_fault(cls, chat: ChatTokenizer) -> Row:
        """Return a row for an episode that infrastructure failed: EasyR1's batches have a fixed number of rows."""
        return cls([chat.end_id], [chat.end_id], [0], 0.0, ())


def outcome_of(key: str, episode: Episode, score: Score, drawn: int) -> Outcome:
    """Return an episode's outcome, for its group; see `Outcome` for `drawn`."""
    return Outcome(
        key=key,
        task_id=episode.task.task_id,
        success=episode.success,
        reward=score.reward,
        format_error=episode.format_error,
        stop_reason=episode.stop_reason.value,
        num_turns=len(episode.turns),
        drawn=drawn,
        task_content=task_content(episode.task.instruction, episode.task.spec),
    )


def trajectory_of(outcome: Outcome, episode: Episode, step: int) -> StoredTrajectory:
    """Return a success as the store keeps it, without log-probs, which EasyR1's engine does not return."""
    (row,) = episode.rows
    stored = StoredRow(row.prompt_ids, row.response_ids, row.response_mask, None, row.screenshots)
    return StoredTrajectory.of_rows(
        [stored],
        task_id=outcome.task_id,
        task_content=outcome.task_content,
        step=step,
        success=outcome.success,
        reward=outcome.reward,
        screenshots=episode.screenshots,
        num_turns=outcome.num_turns,
        extra_fields={"stop_reason": outcome.stop_reason},
        episode=EpisodeId(step, outcome.uid, outcome.session),
    )


def make_batch(
    rows: Mapping[str, Row], processor: Any, chat: ChatTokenizer, prompt_length: int, response_length: int, fps: float
) -> Any:
    """Return EasyR1's batch of the rows, by their keys: prompts padded on the left, responses on the right.

    Args:
        prompt_length, response_length: EasyR1's `data.max_prompt_length` and `data.max_response_length`.
        fps: EasyR1's `data.video_fps`.

    Returns:
        A `DataProto` with `token_level_scores`, for which EasyR1 calls no reward function.

    Raises:
        ReplayError: a row is too long, or its screenshots do not fit its tokens.
    """
    columns = [_columns(row, processor, chat, prompt_length, response_length) for row in rows.values()]
    return stock.DataProto.from_dict(
        tensors={name: torch.stack([column[name] for column in columns]) for name in columns[0]},
        non_tensors={
            "uid": as_objects(rows),
            "multi_modal_data": as_objects({"images": list(row.files)} for row in rows.values()),
        },
        meta_info={**UNRESIZED, "video_fps": fps},
    )


def _columns(row: Row, processor: Any, chat: ChatTokenizer, prompts: int, responses: int) -> dict[str, torch.Tensor]:
    before, behind = prompts - len(row.prompt_ids), responses - len(row.response_ids)
    if min(before, behind) < 0:
        raise ReplayError(
            f"a row must have at most {prompts} and {responses} tokens of prompt and response, got "
            f"{len(row.prompt_ids)} and {len(row.response_ids)}; set data.max_prompt_length and max_response_length "
            "as they were when the store's successes were made"
        )
    tokens = torch.tensor([*row.prompt_ids, *row.response_ids])
    whole = torch.nn.functional.pad(tokens, (before, behind), value=chat.tokenizer.pad_token_id)
    scores = torch.zeros(responses)
    scores[len(row.response_ids) - 1] = row.reward
    mask = torch.tensor(list(row.response_mask))
    return {
        "prompts": whole[:prompts],
        "responses": whole[prompts:],
        "input_ids": whole,
        "attention_mask": torch.nn.functional.pad(torch.ones_like(tokens), (before, behind)),
        "position_ids": torch.nn.functional.pad(positions(row, processor, chat), (before, behind)),
        "response_mask": torch.nn.functional.pad(mask, (0, behind)),
        "token_level_scores": scores,
    }


def positions(row: Row, processor: Any, chat: ChatTokenizer) -> torch.Tensor:
    """Return (4, T): the position in the text, and EasyR1's three of Qwen-VL.

    Raises:
        ReplayError: the row's screenshots do not fit its tokens.
    """
    tokens = torch.tensor([*row.prompt_ids, *row.response_ids])
    sizes, patch = [image_size(file) for file in row.files], processor.image_processor.patch_size
    expected, got = tokens.tolist().count(chat.image_id), sum(map(chat.geometry.num_tokens, sizes))
    if expected != got:
        raise ReplayError(
            f"a row's screenshots must give its {expected} visual tokens, got {got}; set data.min_pixels and "
            "data.max_pixels as they were when its success was stored"
        )
    grid = torch.tensor([[1, size.height // patch, size.width // patch] for size in sizes]) if sizes else None
    ones = torch.ones_like(tokens)
    visual = stock.rope_index(processor, input_ids=tokens, image_grid_thw=grid, attention_mask=ones)
    return torch.cat([torch.arange(len(tokens)).unsqueeze(0), visual])
