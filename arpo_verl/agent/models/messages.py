"""Defines the messages of a conversation, for the agent loop, the dataset and imitation.

A conversation is a family's `opening`, which ends with the first screenshot, and then, in turn, a reply of the model
and a `screenshot_message()`. Roles, parts and their order are those of OSWorld's agents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Words(NamedTuple):
    """A model reads these texts before it acts."""

    system: str
    """The system message; "" for none."""
    user: str
    """The task, and how to reply to it."""


def in_turns(words: Callable[[str, str], Words]) -> Callable[[str, str, Sequence[str]], list[dict[str, Any]]]:
    """Return an opening with the first screenshot in its own message. Earlier replies, without their screenshots, are
    turns of the model before it.

    Args:
        words: (instruction, language) -> the texts that the model reads first.
    """

    def opening(instruction: str, language: str, earlier: Sequence[str]) -> list[dict[str, Any]]:
        system, user = words(instruction, language)
        told = [message("system", text_part(system))] if system else []
        turns = [reply_message(text) for text in earlier]
        return [*told, message("user", text_part(user)), *turns, screenshot_message()]

    return opening


def image_first(words: Words) -> list[dict[str, Any]]:
    """Put the first screenshot into one message with the task after it."""
    return [message("system", text_part(words.system)), message("user", image_part(), text_part(words.user))]


def screenshot_message() -> dict[str, Any]:
    """Return the message of one screenshot; the images themselves are sent beside the messages, in the same order."""
    return message("user", image_part())


def reply_message(text: str) -> dict[str, Any]:
    """Return the message of one reply of the model, unchanged."""
    return message("assistant", text_part(text))


def message(role: str, *content: dict[str, str]) -> dict[str, Any]:
    """Return a message with these parts."""
    # Always in parts, so that every message of a conversation has the same form.
    return {"role": role, "content": list(content)}


def text_part(text: str) -> dict[str, str]:
    """Return a part with a text."""
    return {"type": "text", "text": text}


def image_part() -> dict[str, str]:
    """Return a part that stands for a screenshot."""
    return {"type": "image"}
