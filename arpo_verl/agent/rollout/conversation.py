"""Get the agent's replies, from a policy's conversation in tokens or from anything else that writes an agent's text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from PIL import Image

from arpo_verl.agent.rollout.chat import ChatTokenizer
from arpo_verl.agent.rollout.config import GuiAgentConfig, check_lengths
from arpo_verl.agent.rollout.sequence import EpisodeSequence, Generated
from arpo_verl.errors import ConfigError, GenerationError
from arpo_verl.types import Size, StopReason, Task


@dataclass(frozen=True)
class Written:
    """The text of one reply and, if it is not whole, why."""

    text: str
    problem: str | None = None
    first_screenshot: int = 0
    """Number of the first screenshot that the agent saw; it also saw all later ones."""
    tokens: tuple[str, ...] = ()
    """The text of each token; empty if no policy wrote it in tokens."""


class Conversation(Protocol):
    """One agent in one episode. It sees screenshots and replies to each."""

    @property
    def rows(self) -> Sequence[EpisodeSequence]:
        """The conversation in tokens; empty if no policy writes in tokens."""

    def image_size(self, screen: Size) -> Size:
        """Return the size of the image that the agent's coordinates refer to."""

    def open(self, task: Task, screen: Size) -> None:
        """Write the task and show the first screenshot, of size `screen`."""

    async def reply(self, images: list[Image.Image]) -> Written:
        """Return the next reply; `images` are all screenshots so far."""

    def show(self, screen: Size) -> StopReason | None:
        """Show another screenshot. If no reply could follow it, leave it out and return why the episode ends."""


Generate = Callable[[list[int], list[Image.Image], int], Awaitable[Generated]]
"""(token ids so far, images so far, most tokens of the reply) -> the reply."""


@dataclass(frozen=True)
class TokenLimits:
    """Most tokens of a row: veRL's `rollout.prompt_length` and `rollout.response_length`."""

    prompt: int
    response: int
    total: int | None = None
    """veRL's `rollout.max_model_len`: most tokens of the whole row."""

    @property
    def most(self) -> int:
        """Most tokens of a whole row."""
        both = self.prompt + self.response
        return both if self.total is None else min(both, self.total)


class TokenConversation:
    """A policy's conversation: one row of tokens, or several if the history is long and `config.context` allows it."""

    def __init__(self, generate: Generate, chat: ChatTokenizer, config: GuiAgentConfig, limits: TokenLimits):
        self.rows: list[EpisodeSequence] = []
        self._generate = generate
        self._chat = chat
        self._config = config
        self._limits = limits
        self._instruction = ""
        self._screens: list[Size] = []
        self._replies: list[tuple[int, ...]] = []

    def image_size(self, screen: Size) -> Size:
        return self._chat.geometry.image_size(screen)

    def open(self, task: Task, screen: Size) -> None:
        """Begin the first row.

        Raises:
            ConfigError: the prompt exceeds its limit, or the limits leave no room for a second turn.
            MissingDependencyError: the package with the model's official prompt is not installed.
        """
        check_lengths(self._config, self._limits.response, self._chat.geometry.num_tokens(screen))
        self._instruction = self._chat.plain(task.instruction)
        self._screens.append(screen)
        prompt_ids = self._prompt(0)
        if len(prompt_ids) > self._limits.prompt:
            raise ConfigError(
                f"actor_rollout_ref.rollout.prompt_length must hold the prompt of task {task.task_id} with its first "
                f"screenshot, {len(prompt_ids)} tokens, got {self._limits.prompt}; raise data.max_prompt_length"
            )
        self.rows.append(EpisodeSequence(prompt_ids))

    async def reply(self, images: list[Image.Image]) -> Written:
        max_tokens = self._config.max_reply_tokens
        row = self.rows[-1]
        shown = [images[number] for number in row.screenshots]
        generated = await self._generate(row.token_ids, shown, max_tokens)
        token_ids = generated.token_ids[:max_tokens]  # an engine may ignore the limit
        log_probs = generated.log_probs[:max_tokens] if generated.log_probs is not None else None
        row.add_reply(token_ids, log_probs)
        if (row.response_log_probs is None) != (self.rows[0].response_log_probs is None):
            raise GenerationError("the rollout engine must give log-probs of every row's replies, or of none")
        self._replies.append(tuple(token_ids))
        problem = None
        if len(token_ids) == max_tokens and not self._chat.ends_turn(token_ids[-1]):
            problem = f"a reply must end within gui_agent.max_reply_tokens={max_tokens}, got no end"
        texts = self._chat.texts(token_ids)
        return Written(self._chat.text(token_ids), problem, row.screenshots.start, texts)

    def show(self, screen: Size) -> StopReason | None:
        """Append a screenshot if it still fits with a whole reply to it. Neither is ever cut short."""
        row = self.rows[-1]
        context = self._chat.next_screenshot(row.token_ids[-1], screen)
        is_full = len(row.screenshots) == self._config.row_screenshots
        if not is_full and self._fits(len(row.prompt_ids), len(row.response_ids) + len(context)):
            row.add_context(context, 1)
            self._screens.append(screen)
            return None
        kept = self._config.screenshots_kept
        if kept is None:
            return StopReason.TOKEN_LIMIT
        self._screens.append(screen)
        newest = len(self._screens)
        for first in range(max(0, newest - kept), newest):  # leave out the oldest until the replies leave enough room
            prompt_ids = self._prompt(first)
            if self._fits(len(prompt_ids), 0):
                self.rows.append(EpisodeSequence(prompt_ids, range(first, newest)))
                return None
        return StopReason.TOKEN_LIMIT

    def _fits(self, prompt: int, response: int) -> bool:
        """Return whether a row of so many tokens has room for a reply."""
        response += self._config.max_reply_tokens
        return response <= self._limits.response and prompt + response <= self._limits.most

    def _prompt(self, first: int) -> list[int]:
        """Return a row's tokens, up to where the reply to the newest screenshot begins.

        The replies in it are the tokens that the policy wrote, not their text tokenized again.

        Args:
            first: number of the first screenshot that the row shows.
        """
        family, earlier = self._config.family, self._replies[:first]
        if not earlier or family.lists_earlier:
            said = [self._chat.plain(self._chat.text(reply)) for reply in earlier]  # a policy may spell one out
            messages = family.opening(self._instruction, self._config.language, said)
            ids = self._chat.prompt(messages, self._screens[first])
        else:
            messages = family.opening(self._instruction, self._config.language, ())
            ids = self._chat.conversation(messages[:-1], [])
            for number, reply in enumerate(earlier):
                ids += self._chat.next_reply(ids[-1]) if number else []
                ids += reply
            ids += self._chat.next_screenshot(ids[-1], self._screens[first])
        for reply, screen in zip(self._replies[first:], self._screens[first + 1 :], strict=True):
            ids += reply
            ids += self._chat.next_screenshot(ids[-1], screen)
        return ids
