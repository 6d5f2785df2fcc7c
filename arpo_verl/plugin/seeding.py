"""Turn successes that were recorded elsewhere into a store to start training with.

An episode goes again through the agent loop's own conversation, or its harness's requests are asked again, with its
recorded replies instead of the policy's. So its tokens are those that this run's policy would have seen and written. If
the same tokenizer recorded the replies' tokens, we take them with their log-probs. Otherwise we tokenize the text, and
have no log-probs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig
from PIL import Image

from arpo_verl.agent.harness.token_chat import ParseCalls
from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import TokenConversation, TokenLimits
from arpo_verl.agent.rollout.scoring import EXTRA
from arpo_verl.agent.rollout.sequence import EpisodeSequence, Generated
from arpo_verl.errors import ActionError, ArpoError, ReplayError
from arpo_verl.lib.config import build_config
from arpo_verl.plugin.settings import plain_section
from arpo_verl.records.harness_rows import HarnessRecords, RecordedRows
from arpo_verl.records.recorded import RecordedEpisode
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.replay.store.persistence import Fingerprint
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.replay.trajectory import StoredRow, StoredTrajectory
from arpo_verl.types import Size, Task

logger = logging.getLogger(__name__)

SEED_STEP = 0
"""The step of a seed: before training."""


@dataclass(frozen=True)
class SeedPolicy:
    """Makes tokens of a conversation for the policy that will train on the seeds."""

    chat: ChatTokenizer
    agent: GuiAgentConfig
    limits: TokenLimits
    mm_processor_kwargs: Mapping[str, Any]
    fingerprint: Fingerprint
    parse_calls: ParseCalls | None = None
    """Of a run with a harness, which reads calls of tools in replies."""

    @classmethod
    def of_recipe(cls, recipe: DictConfig) -> SeedPolicy:
        """Build it for a composed recipe, as veRL builds the agent loop.

        Raises:
            ConfigError: a value is wrong.
            ReplayError: the model's folder cannot be read.
        """
        from arpo_verl.plugin.model_inputs import ModelInputs
        from arpo_verl.plugin.settings import PolicyFiles, chat_tokenizer
        from arpo_verl.plugin.tool_calls import tool_parser
        from arpo_verl.replay.fingerprint import model_fingerprint

        agent = build_config(GuiAgentConfig, "gui_agent", plain_section("gui_agent", recipe.gui_agent))
        model, rollout = recipe.actor_rollout_ref.model, recipe.actor_rollout_ref.rollout
        kwargs = dict(recipe.data.get("mm_processor_kwargs") or {})
        try:
            inputs = ModelInputs.load(PolicyFiles.of_recipe(recipe), kwargs)
            model_type = _model_type(model.get("hf_config_path") or model.path)
            chat = chat_tokenizer(inputs.tokenizer, inputs.processor, model_type, kwargs)
        except (OSError, ValueError) as error:
            if isinstance(error, ArpoError):
                raise
            raise ReplayError(
                f"actor_rollout_ref.model.path must be a model with its tokenizer and processor, got {model.path}: "
                f"{error}"
            ) from error
        return cls(
            chat=chat,
            agent=agent,
            limits=TokenLimits(
                recipe.data.max_prompt_length, recipe.data.max_response_length, rollout.get("max_model_len")
            ),
            mm_processor_kwargs=kwargs,
            fingerprint=model_fingerprint(inputs.tokenizer, inputs.processor, kwargs, agent),
            parse_calls=None if agent.harness is None else tool_parser(rollout, inputs.tokenizer),
        )

    def rows(self, episode: RecordedEpisode) -> RecordedRows:
        """The episode's rows, as the run's own loop or its harness would have them.

        Raises:
            ReplayError: as `tokenize`.
        """
        if self.parse_calls is None:
            return RecordedRows(tuple(self.tokenize(episode)), episode.screenshots)
        return HarnessRecords(self.chat, self.agent, self.limits, self.parse_calls).rows(episode)

    def tokenize(self, episode: RecordedEpisode) -> list[EpisodeSequence]:
        """Return the episode's rows as the agent loop would have made them.

        Raises:
            ReplayError: the episode exceeds the run's limits, or its replies are not in the run's grammar.
        """
        images = episode.images()
        texts = [
            self._in_own_pixels(text, episode, Size(*image.size))
            for text, image in zip(episode.replies, images, strict=True)
        ]
        if tuple(texts) == episode.replies and self._are_own(episode):
            rows = asyncio.run(self._converse(episode, images, episode.tokens))
            lengths = [(len(row.prompt_ids), len(row.response_ids)) for row in rows]
            if tuple(map(sum, zip(*lengths, strict=True))) == episode.num_tokens:
                return rows
        return asyncio.run(self._converse(episode, images, [self._generated(text) for text in texts]))

    async def _converse(
        self, episode: RecordedEpisode, images: Sequence[Image.Image], replies: Sequence[Generated]
    ) -> list[EpisodeSequence]:
        remaining = iter(replies)

        async def generate(token_ids: list[int], shown: list[Image.Image], max_tokens: int) -> Generated:
            reply = next(remaining)
            if not self.chat.placeholder_ids.isdisjoint(reply.token_ids):
                raise ReplayError("a reply must not contain <|image_pad|> or <|video_pad|>: no image belongs to it")
            return reply

        conversation = TokenConversation(generate, self.chat, self.agent, self.limits)
        conversation.open(Task(episode.task_id, episode.instruction, {}), Size(*images[0].size))
        for number, image in enumerate(images):
            if number and conversation.show(Size(*image.size)) is not None:
                raise ReplayError(f"data.max_response_length is too small: reply {number + 1} does not fit")
            written = await conversation.reply(list(images[: number + 1]))
            if written.problem is not None:
                raise ReplayError(written.problem)
        return conversation.rows

    def _generated(self, text: str) -> Generated:
        ids = self.chat.tokenizer.encode(text, add_special_tokens=False)
        return Generated((*ids, self.chat.end_id), None)

    def _in_own_pixels(self, text: str, episode: RecordedEpisode, screen: Size) -> str:
        """Return a reply with its coordinates converted to the image that this run's processor makes."""
        family, own = self.agent.family, self.chat.geometry.image_size(screen)
        theirs = episode.image_size or own
        try:
            reply = family.read(text, theirs, screen)
            return text if theirs == own else family.format(reply, own, screen)
        except ActionError as error:
            raise ReplayError(f"a reply must be in the grammar of {self.agent.model_family}: {error}") from error

    def _are_own(self, episode: RecordedEpisode) -> bool:
        """Return whether this tokenizer made the recorded tokens."""
        texts = (self.chat.text(reply.token_ids) for reply in episode.tokens)
        return len(episode.tokens) == len(episode.replies) and all(
            own == text for own, text in zip(texts, episode.replies, strict=True)
        )


@dataclass
class SeedReport:
    """Counts what became of the episodes."""

    stored: int = 0
    with_log_probs: int = 0
    skipped: Counter[str] = dataclasses.field(default_factory=Counter)
    """How many were not stored, by reason."""


def seed_store(
    store: SuccessStore, episodes: Iterable[RecordedEpisode], policy: SeedPolicy, config: ReplayConfig
) -> SeedReport:
    """Add every recorded success that training itself would store, and report what became of the others."""
    report = SeedReport()
    for episode in episodes:
        reason = _reason_to_skip(episode, policy.agent, config)
        if reason is not None:
            report.skipped[reason] += 1
            continue
        try:
            trajectory = seed_trajectory(episode, policy)
        except ArpoError as error:
            logger.warning("%s cannot become a seed: %s", episode.source, error)
            report.skipped["does not fit this policy"] += 1
            continue
        store.add(trajectory)
        report.stored += 1
        report.with_log_probs += trajectory.rollout_log_probs is not None
    return report


def seed_trajectory(episode: RecordedEpisode, policy: SeedPolicy) -> StoredTrajectory:
    """Return the episode as the trajectory that the sampler would have stored."""
    recorded = policy.rows(episode)
    rows = [
        StoredRow(row.prompt_ids, row.response_ids, row.response_mask, row.response_log_probs, row.screenshots)
        for row in recorded.rows
    ]
    return StoredTrajectory.of_rows(
        rows,
        task_id=episode.task_id,
        task_content=episode.task_content,
        step=SEED_STEP,
        success=episode.success,
        reward=episode.reward,
        screenshots=recorded.screenshots,
        num_turns=len(episode.screenshots) + len(episode.replies),
        extra_fields={
            "task_id": episode.task_id,
            "success": episode.success,
            "format_error": float(episode.format_error),
            "stop_reason": episode.stop_reason,
            "num_turns": len(episode.replies),
            "reward_extra_info": {**dict.fromkeys(EXTRA, 0.0), **episode.reward_extra_info},
        },
        mm_processor_kwargs=dict(policy.mm_processor_kwargs),
    )


def _reason_to_skip(episode: RecordedEpisode, agent: GuiAgentConfig, config: ReplayConfig) -> str | None:
    if episode.validation:
        return "from validation"
    if episode.success < config.success_threshold:
        return "failed"
    if episode.format_error:
        return "ended in a malformed reply"
    if not episode.screenshots:
        return "recorded without its screenshots"
    if not episode.task_content:
        return "recorded by an earlier version, without the content of its task"
    if agent.harness is not None and not episode.requests:
        return "played by no harness"
    return "longer than gui_agent.max_steps" if len(episode.replies) > agent.max_turns else None


def _model_type(path: str) -> str:
    from transformers import AutoConfig
    from verl.utils.fs import copy_to_local

    model_type: str = AutoConfig.from_pretrained(copy_to_local(path)).model_type
    return model_type
