"""How replies come about: a policy's conversation in tokens, or whatever else can write an agent's text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from arpo_verl.errors import ConfigError
from arpo_verl.rollout.chat import ChatTokenizer
from arpo_verl.rollout.config import GuiAgentConfig, check_lengths
from arpo_verl.rollout.prompts import build_messages
from arpo_verl.rollout.sequence import EpisodeSequence, Generated
from arpo_verl.types import Size, StopReason, Task


@dataclass(frozen=True)
class Written:
    """One reply's text, and why it is not whole, if it is not."""

    text: str
    problem: str | None = None


class Conversation(Protocol):
    """One agent in one episode: it is shown screenshots and replies to each."""

    sequence: EpisodeSequence
    """What was said, in tokens; empty where no policy speaks."""

    def image_size(self, screen: Size) -> Size:
        """The size of the image that the agent's coordinates are in."""

    def open(self, task: Task, screen: Size) -> None:
        """Tell the task and show the first screenshot, of size `screen`."""

    async def reply(self, images: list[Image.Image]) -> Written:
        """The next reply; `images` are all screenshots so far."""

    def show(self, screen: Size) -> StopReason | None:
        """Show another screenshot; where no reply could follow it, leave it out and say why the episode ends."""


Generate = Callable[[list[int], list[Image.Image], int], Awaitable[Generated]]
"""(token ids so far, images so far, most tokens of the reply) -> the reply."""


@dataclass(frozen=True)
class TokenLimits:
    """veRL's `rollout.prompt_length` and `rollout.response_length`."""

    prompt: int
    response: int
    total: int | None = None
    """veRL's `rollout.max_model_len`: of the whole sequence."""


class TokenConversation:
    """A policy's: one token sequence, which no screenshot leaves."""

    sequence: EpisodeSequence

    def __init__(self, generate: Generate, chat: ChatTokenizer, config: GuiAgentConfig, limits: TokenLimits):
        self._generate = generate
        self._chat = chat
        self._config = config
        self._limits = limits

    def image_size(self, screen: Size) -> Size:
        return self._chat.geometry.image_size(screen)

    def open(self, task: Task, screen: Size) -> None:
        """Begin the sequence.

        Raises:
            ConfigError: the prompt does not fit its limit, or no episode could take a second step.
            MissingDependencyError: the model's own words are not installed.
        """
        check_lengths(self._config, self._limits.response, self._chat.geometry.num_tokens(screen))
        messages = build_messages(task.instruction, kind=self._config.prompt, language=self._config.language)
        prompt_ids = self._chat.prompt(messages, screen)
        if len(prompt_ids) > self._limits.prompt:
            raise ConfigError(
                f"actor_rollout_ref.rollout.prompt_length must hold the prompt of task {task.task_id} with its first "
                f"screenshot, {len(prompt_ids)} tokens, got {self._limits.prompt}; raise data.max_prompt_length"
            )
        self.sequence = EpisodeSequence(prompt_ids)

    async def reply(self, images: list[Image.Image]) -> Written:
        max_tokens = self._config.max_reply_tokens
        generated = await self._generate(self.sequence.token_ids, images, max_tokens)
        token_ids = generated.token_ids[:max_tokens]  # for an engine that knows no such limit
        log_probs = generated.log_probs[:max_tokens] if generated.log_probs is not None else None
        self.sequence.add_reply(token_ids, log_probs)
        problem = None
        if len(token_ids) == max_tokens and not self._chat.ends_turn(token_ids[-1]):
            problem = f"a reply must end within gui_agent.max_reply_tokens={max_tokens}, got no end"
        return Written(self._chat.text(token_ids), problem)

    def show(self, screen: Size) -> StopReason | None:
        """Append a screenshot, if it and a whole reply to it still fit: neither is ever cut short by the limit."""
        context = self._chat.next_screenshot(self.sequence.token_ids[-1], screen)
        used = len(self.sequence.response_ids) + len(context) + self._config.max_reply_tokens
        total = self._limits.total
        if used > self._limits.response or (total is not None and len(self.sequence.prompt_ids) + used > total):
            return StopReason.TOKEN_LIMIT
        self.sequence.add_context(context)
        return None
