"""The shapes of a conversation: used alike by the agent loop, the dataset and imitation.

A conversation is a family's `opening`, which ends with the first screenshot, and then in turn the model's reply and a
`screenshot_message()`. Roles, parts and their order are those of OSWorld's agents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Words(NamedTuple):
    """What a model reads before it acts."""

    system: str
    """"" where there is no such message."""
    user: str
    """The task and how to reply to it."""


def in_turns(words: Callable[[str, str], Words]) -> Callable[[str, str, Sequence[str]], list[dict[str, Any]]]:
    """An opening with the first screenshot in a message of its own. Earlier replies, whose screenshots are not shown,
    are turns of the model before it.

    Args:
        words: (instruction, language) -> what the model reads first.
    """

    def opening(instruction: str, language: str, earlier: Sequence[str]) -> list[dict[str, Any]]:
        system, user = words(instruction, language)
        told = [message("system", text_part(system))] if system else []
        turns = [reply_message(text) for text in earlier]
        return [*told, message("user", text_part(user)), *turns, screenshot_message()]

    return opening


def image_first(words: Words) -> list[dict[str, Any]]:
    """The first screenshot in one message with the task behind it."""
    return [message("system", text_part(words.system)), message("user", image_part(), text_part(words.user))]


def screenshot_message() -> dict[str, Any]:
    """One screenshot in the conversation; the image itself travels beside the messages, in their order."""
    return message("user", image_part())


def reply_message(text: str) -> dict[str, Any]:
    """One reply of the model, as written."""
    return message("assistant", text_part(text))


def message(role: str, *content: dict[str, str]) -> dict[str, Any]:
    """A message of these parts."""
    # In parts, whatever they are: every message of a conversation has one shape.
    return {"role": role, "content": list(content)}


def text_part(text: str) -> dict[str, str]:
    """Words, as they are."""
    return {"type": "text", "text": text}


def image_part() -> dict[str, str]:
    """The place of a screenshot."""
    return {"type": "image"}
