"""From the replies of an episode to the rows that are trained: each reply once, behind the tokens it was written to.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from arpo_verl.agent.rollout.conversation import TokenLimits
from arpo_verl.agent.rollout.sequence import EpisodeSequence, Generated
from arpo_verl.errors import GenerationError

T = TypeVar("T")


@dataclass(eq=False)
class TokenReply:
    """One reply of the policy, and what it was written to."""

    request: bytes
    """Hash of the messages that asked for it."""
    prompt_ids: Sequence[int] = field(repr=False)
    """All tokens before it."""
    images: tuple[bytes, ...]
    """Names of those that the tokens show, in order."""
    generated: Generated = field(repr=False)
    earlier: TokenReply | None = None
    """The reply that the messages go on from, whose tokens these begin with; None where they begin anew."""
    spoken: tuple[object, ...] = ()
    """See `harness.chat_completions.ChatMessage.spoken`."""

    @property
    def token_ids(self) -> list[int]:
        """Everything up to its end."""
        return [*self.prompt_ids, *self.generated.token_ids]


def trained(replies: Sequence[TokenReply]) -> list[TokenReply]:
    """Return the replies that the program went on with.

    Of several replies to the same messages, as a retry asks for them, these are the ones that later messages go on
    from; where there is none, the last.
    """
    continued = {reply.earlier for reply in replies}
    last = {reply.request: reply for reply in replies}
    gone_on = {reply.request for reply in replies if reply in continued}
    return [
        reply
        for reply in replies
        if reply in continued or (reply.request not in gone_on and last[reply.request] is reply)
    ]


def chains(replies: Sequence[TokenReply], limits: TokenLimits) -> list[list[TokenReply]]:
    """Return each row's replies, in order: a row grows while messages go on from its last reply and it has room."""
    made: list[list[TokenReply]] = []
    open_rows: dict[TokenReply, list[TokenReply]] = {}
    for reply in replies:
        row = open_rows.pop(reply.earlier, None) if reply.earlier is not None else None
        if row is None or not fits(limits, len(row[0].prompt_ids), len(reply.token_ids) - len(row[0].prompt_ids)):
            row = []
            made.append(row)
        row.append(reply)
        open_rows[reply] = row
    return made


def fits(limits: TokenLimits, prompt: int, response: int) -> bool:
    """Return whether a row may have so many tokens."""
    return response <= limits.response and prompt + response <= limits.most


def lay_out(shown: Sequence[Sequence[T]]) -> tuple[list[T], list[range]]:
    """Return one list of images of which each row shows a stretch that goes on from those before.

    What a row shows of the end of the list is not repeated; what it shows from farther back is.

    Args:
        shown: each row's images.

    Returns:
        The list, and each row's stretch of it.
    """
    order: list[T] = []
    stretches = []
    for images in shown:
        most = min(len(order), len(images))
        common = next(n for n in range(most, -1, -1) if order[len(order) - n :] == list(images[:n]))
        start = len(order) - common
        order += images[common:]
        stretches.append(range(start, start + len(images)))
    return order, stretches


def sequence(row: Sequence[TokenReply], stretch: range) -> EpisodeSequence:
    """Return a row's tokens, mask and log-probs.

    Args:
        row: its replies, in order.
        stretch: the numbers of the images that it shows.

    Raises:
        GenerationError: log-probs are there for some of the replies only.
    """
    first = row[0]
    made = EpisodeSequence(first.prompt_ids, stretch[: len(first.images)])
    so_far, num_images = len(first.prompt_ids), len(first.images)
    for reply in row:
        if reply is not first:
            made.add_context(reply.prompt_ids[so_far:], len(reply.images) - num_images)
        made.add_reply(reply.generated.token_ids, reply.generated.log_probs)
        so_far, num_images = len(reply.token_ids), len(reply.images)
    return made


def sequences(rows: Sequence[Sequence[TokenReply]], stretches: Sequence[range]) -> tuple[EpisodeSequence, ...]:
    """Return all rows' tokens; see `sequence`.

    Raises:
        GenerationError: log-probs are there for some of the replies only.
    """
    made = tuple(sequence(row, stretch) for row, stretch in zip(rows, stretches, strict=True))
    if len({row.response_log_probs is None for row in made}) > 1:
        raise GenerationError("the rollout engine must give log-probs of every row's replies, or of none")
    return made
