"""Reply without a policy: from a script, from a recorded episode, or from a person."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from PIL import Image

from arpo_verl.agent.rollout.conversation import Written
from arpo_verl.agent.rollout.sequence import EpisodeSequence
from arpo_verl.errors import ConfigError
from arpo_verl.types import Size, StopReason, Task

NextReply = Callable[[Size], "str | None"]
"""(size of the screen that it replies to) -> the next reply, or None if there are no more."""


class ScriptedConversation:
    """An agent that is a Python callable.

    Args:
        next_reply: returns one reply for each screenshot.
        image_size: size of the image that the replies' coordinates refer to; None: the screen's.
    """

    rows: tuple[EpisodeSequence, ...] = ()

    def __init__(self, next_reply: NextReply, image_size: Size | None = None):
        self._next_reply = next_reply
        self._image_size = image_size
        self._next: str | None = None

    def image_size(self, screen: Size) -> Size:
        return self._image_size or screen

    def open(self, task: Task, screen: Size) -> None:
        """Take the first reply.

        Raises:
            ConfigError: there is no reply.
        """
        if self.show(screen) is not None:
            raise ConfigError("an episode must have at least one reply, got none")

    async def reply(self, images: list[Image.Image]) -> Written:
        assert self._next is not None
        return Written(self._next)

    def show(self, screen: Size) -> StopReason | None:
        self._next = self._next_reply(screen)
        return StopReason.STEP_LIMIT if self._next is None else None


def replies_of(texts: Iterable[str]) -> NextReply:
    """Return these texts, one after the other."""
    iterator = iter(texts)
    return lambda screen: next(iterator, None)
