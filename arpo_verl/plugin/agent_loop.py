"""Implement the agent loop `gui_agent`: veRL's `AgentLoopBase` plays one episode, and retries it if a desktop fails.

Written for veRL 0.9.1, which makes one loop object for each session. `arpo_verl.plugin` registers it by name, and this
module on import.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import uuid4

from PIL import Image
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.experimental.agent_loop.tool_agent_loop import SPEC_DECODE_EXTRA_KEYS
from verl.workers.rollout.replica import TokenOutput

from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.conversation import TokenLimits
from arpo_verl.agent.rollout.episode import Episode, play_episode
from arpo_verl.agent.rollout.scoring import Score, score_episode
from arpo_verl.agent.rollout.sequence import Generated
from arpo_verl.desktops.pool.attempts import attempt_until_whole
from arpo_verl.desktops.pool.desktop_pool import Session
from arpo_verl.errors import ConfigError, GenerationError, MissingDependencyError, TaskError
from arpo_verl.plugin import queue
from arpo_verl.plugin.dataset import read_task
from arpo_verl.plugin.rows import SCREENSHOTS, GuiAgentOutput, shows_from
from arpo_verl.plugin.sent_images import take_in
from arpo_verl.plugin.settings import connect_pool, load_settings
from arpo_verl.records.recorder import Recorder
from arpo_verl.types import Task

logger = logging.getLogger(__name__)


@register("gui_agent")
class GuiAgentLoop(AgentLoopBase):
    """Plays one episode of the row's task and returns its rows to veRL, each with the episode's reward.

    If a desktop fails, the episode starts again on a fresh one, at most `environment.max_attempts` times. Then `run`
    raises, and veRL trains on the remaining sessions. No failure changes a reward. If the policy itself provably ended
    the desktop, the episode scores 0 and is not repeated.
    """

    def __init__(self, *args: Any, pool: Any = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._settings = load_settings(self.config)
        self._pool = pool if pool is not None else connect_pool(self.config)
        self._chat = ChatTokenizer.from_processor(
            self.tokenizer, self.processor, self.continuous_token_builder, self.mm_processor_kwargs
        )
        self._recorder = Recorder(self._settings.agent, runs_in_validation)
        rollout = self.rollout_config
        self._limits = TokenLimits(rollout.prompt_length, rollout.response_length, rollout.get("max_model_len"))

    @cached_property
    def _play_episode(self) -> Callable[..., Awaitable[Episode]]:
        """Our loop, or the recipe's harness. `run` makes it and reports errors in the recipe."""
        if self._settings.agent.harness is None:
            return play_episode
        # Here, since no other run needs the harness, its server and its sandbox.
        from arpo_verl.plugin.tool_calls import harness_episodes

        return harness_episodes(self._settings.agent, self.rollout_config, self.tokenizer).play_episode

    async def run(  # type: ignore[override]  # veRL accepts a list too, as its queue's signature says
        self, sampling_params: dict[str, Any], **kwargs: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play, score and record one episode. Return its row, or a list if it has several.

        Args:
            sampling_params: veRL's parameters for every reply.
            **kwargs: the dataset row, with what veRL adds: `uid`, `session_id`, `global_steps`.

        Raises:
            DesktopError: `environment.max_attempts` desktops failed; nothing is scored.
            GenerationError: the rollout engine gave no usable reply.
            ConfigError: the recipe or its reward function is wrong; the sampler ends the run.
            MissingDependencyError, TaskError: a package or the row's task is missing; the sampler ends the run.
        """
        try:
            return await self._play(sampling_params, kwargs)
        except (ConfigError, MissingDependencyError, TaskError) as error:
            # Other sessions would fail too, but veRL would only log it and draw the next prompt forever.
            await self._pool.refuse(str(error))
            raise

    async def _play(
        self, sampling_params: dict[str, Any], kwargs: Mapping[str, Any]
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        task = read_task(kwargs)

        async def attempt(session: Session, unclear_losses: int) -> tuple[Episode, _Engine, Score]:
            engine = _Engine(self, sampling_params, kwargs)
            return await self._attempt(task, kwargs, engine, session, unclear_losses)

        batch = int(kwargs.get("global_steps") or 0)
        played = await attempt_until_whole(self._pool, self._settings.environment, task.task_id, attempt, batch)
        rows = await asyncio.to_thread(self._output, *played)
        return rows[0] if len(rows) == 1 else rows

    async def _attempt(
        self,
        task: Task,
        row: Mapping[str, Any],
        engine: _Engine,
        session: Session,
        unclear_losses: int,
    ) -> tuple[Episode, _Engine, Score]:
        """Play one episode on one desktop. Return the desktop before scoring."""
        async with self._recorder.episode(row, task) as writer:
            async with session.lease() as desktop:
                writer.begin(f"{desktop.name} on {desktop.host}")
                episode = await self._play_episode(
                    task,
                    desktop,
                    engine.generate,
                    self._chat,
                    self._settings.agent,
                    self._limits,
                    writer,
                    take_in,
                )
            written = [token_id for part in episode.rows for token_id in part.response_ids]
            solution = await asyncio.to_thread(self._chat.text, written)
            score = await score_episode(
                self._settings.reward_function, episode, solution, row, unclear_losses, await self._credit(episode, row)
            )
            await writer.finish(episode, score)
        return episode, engine, score

    async def _credit(self, episode: Episode, row: Mapping[str, Any]) -> float:
        """Return the weight of partial credit: 0 unless veRL certainly trains on the episode."""
        weight = self._settings.environment.partial_credit
        if weight == 0 or episode.share is None:
            return 0.0
        return weight if await _is_queued(str(row.get("uid", "")), queue.TRAINING) else 0.0

    def _output(self, episode: Episode, engine: _Engine, score: Score) -> list[AgentLoopOutput]:
        """Return the trajectory as veRL's rows. Set every field, since a column must exist in all rows or in none."""
        outputs: list[GuiAgentOutput] = []
        shown = 0
        for row in episode.rows:
            numbers, is_last = row.screenshots, row is episode.rows[-1]
            outputs.append(
                GuiAgentOutput(
                    prompt_ids=row.prompt_ids,
                    response_ids=row.response_ids,
                    response_mask=row.response_mask,
                    response_logprobs=row.response_log_probs,
                    routed_experts=engine.routed_experts,
                    multi_modal_data={
                        "images": list(episode.images[numbers.start : numbers.stop]),
                        SCREENSHOTS: list(episode.screenshots[numbers.start : numbers.stop]),
                    },
                    mm_processor_kwargs=self._get_mm_processor_kwargs(),
                    reward_score=score.reward,
                    num_turns=len(episode.images) + len(episode.turns),
                    metrics=AgentLoopMetrics(
                        generate_sequences=episode.generate_s,
                        tool_calls=episode.desktop_s,
                        compute_score=score.seconds,
                        num_preempted=engine.num_preempted,
                    )
                    if is_last
                    else AgentLoopMetrics(),
                    extra_fields={
                        **engine.extra_fields,
                        "task_id": episode.task.task_id,
                        "success": episode.success,
                        "format_error": float(episode.format_error),
                        "stop_reason": episode.stop_reason.value,
                        "num_turns": len(episode.turns),
                        "reward_extra_info": dict(score.extra_info),
                        **shows_from(numbers.start),
                    },
                    screenshots=list(episode.screenshots[shown : numbers.stop]),
                )
            )
            shown = numbers.stop
        return [*outputs]


@dataclass
class _Engine:
    """One attempt's conversation with the rollout engine, and the figures that the engine reports."""

    loop: GuiAgentLoop
    sampling_params: Mapping[str, Any]
    row: Mapping[str, Any]
    num_preempted: int = -1
    routed_experts: Any = None
    extra_fields: dict[str, Any] = field(default_factory=dict)
    request_id: str = ""
    num_requests: int = 0

    def __post_init__(self) -> None:
        # All turns use the same id, so that veRL sends them to the server with their prefix in its cache.
        self._deterministic = self.loop.rollout_config.get("full_determinism", False)
        self.request_id = _same_in_every_run(self.row) if self._deterministic else uuid4().hex

    def _seed(self) -> dict[str, int]:
        """Return the next reply's seed in a deterministic run: the same in every run, another in each session and turn.

        veRL's vLLM server gives a request without a seed the engine's (0.9.1, `vllm_async_server.py: generate`): all
        rollouts of a group would be equal.
        """
        self.num_requests += 1
        rollout = self.loop.rollout_config
        if not self._deterministic or rollout.get("name") == "sglang":  # which knows no such parameter
            return {}
        return {"seed": zlib.crc32(f"{rollout.get('seed', 0)} {self.request_id} {self.num_requests}".encode())}

    async def generate(self, prompt_ids: list[int], images: list[Image.Image], max_tokens: int) -> Generated:
        """Ask the engine for one reply.

        Raises:
            GenerationError: the reply was aborted, is empty, or contains a placeholder without an image.
        """
        output: TokenOutput = await self.loop.server_manager.generate(
            request_id=self.request_id,
            prompt_ids=prompt_ids,
            sampling_params={**self.sampling_params, **self._seed(), "max_tokens": max_tokens},
            image_data=images,
            mm_processor_kwargs=self.loop._get_mm_processor_kwargs(),
            priority=int(self.row.get("priority") or 0),
        )
        self._check(output)
        self._account(output)
        log_probs = tuple(output.log_probs) if output.log_probs else None
        return Generated(tuple(output.token_ids), log_probs)

    def _check(self, output: TokenOutput) -> None:
        if output.stop_reason in ("abort", "aborted") or not output.token_ids:
            raise GenerationError(
                f"the rollout engine must give a reply, got {len(output.token_ids)} tokens, "
                f"stop reason {output.stop_reason!r}"
            )
        if not self.loop._chat.placeholder_ids.isdisjoint(output.token_ids):
            raise GenerationError(
                "a reply must not contain <|image_pad|> or <|video_pad|>, since no image belongs to it; "
                "make the rollout engine ban them, as veRL's vLLM server does"
            )

    def _account(self, output: TokenOutput) -> None:
        """Combine the engine's figures over several turns, as veRL's tool agent loop does."""
        if output.num_preempted is not None:
            self.num_preempted = max(self.num_preempted, 0) + output.num_preempted
        if output.routed_experts is not None:
            self.routed_experts = output.routed_experts  # the last ones cover the whole sequence
        first, self.extra_fields = self.extra_fields, {**output.extra_fields, **self.extra_fields}
        if first and output.extra_fields.get("max_global_steps") is not None:
            self.extra_fields["max_global_steps"] = output.extra_fields["max_global_steps"]
        for name in SPEC_DECODE_EXTRA_KEYS:
            if name in first and name in output.extra_fields:
                self.extra_fields[name] = first[name] + output.extra_fields[name]


def _same_in_every_run(row: Mapping[str, Any]) -> str:
    """Return a name for a session that is the same in every run: with `full_determinism` veRL routes by its hash.

    veRL's own loops use the row's `priority`, a number from `AgentLoopManager.generate_sequences`. The V1 trainer's
    `AgentLoopManagerTQ` sets none: each session would be number 0, and all would go to one server.
    """
    if "priority" in row:
        return f"det-{row['priority']}"
    extra_info = row["extra_info"]
    # With the frontier a task may come twice in a step; its sessions need different names.
    return f"det-{row['global_steps']}-{extra_info.get('draw', extra_info['index'])}-{row['session_id']}"


async def runs_in_validation(uid: str) -> bool | None:
    """Return whether veRL validates. It does not say so, but queues validation prompts apart. None: not known."""
    return await _is_queued(uid, queue.VALIDATION)


async def _is_queued(uid: str, partition: str) -> bool | None:
    try:
        return await queue.is_queued(uid, partition)
    except RuntimeError:  # not every trainer of veRL has one
        logger.debug("no TransferQueue to ask whether episode %s is of %s", uid, partition, exc_info=True)
        return None
