"""What the model is told, and the shape of the conversation; used alike by the agent loop, the dataset and imitation.

A conversation is `build_messages(...)`, which ends with the first screenshot, and then in turn the model's reply and a
`screenshot_message()`. Roles, parts and their order are those of OSWorld's agents: UI-TARS is shown each screenshot in
a message of its own, Qwen the first one in a message with the task behind it. Replies whose screenshots are no longer
shown stay as text: UI-TARS's as turns of the model, Qwen's as a list of actions behind the task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from arpo_verl.actions.grammars import GRAMMARS
from arpo_verl.errors import ConfigError
from arpo_verl.rollout import official_words

PROMPT_GRAMMARS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "ui_tars_15": ("ui_tars",),
        "compact": tuple(GRAMMARS),
        "qwen25_vl": ("qwen25_vl",),
        "qwen3_vl": ("qwen3_vl",),
    }
)
"""The grammars that each prompt goes with: those whose actions it names, or any when it names none."""


def prompt_of(grammar: str) -> str:
    """A prompt that goes with a grammar.

    Raises:
        ConfigError: there is no such grammar.
    """
    if not isinstance(grammar, str) or grammar not in GRAMMARS:
        raise ConfigError(f"grammar must be one of {', '.join(GRAMMARS)}, got {grammar!r}")
    return next(prompt for prompt, grammars in PROMPT_GRAMMARS.items() if grammar in grammars)


# Known to the small policy's tokenizer and about 20 tokens long; the embedded recipe's, and ours.
_COMPACT_SYSTEM = "You are a GUI agent. You are given a task and screenshots. Reply with the next action."

_IMAGE = {"type": "image"}
_CALLED = re.compile(r'"action"\s{0,8}:\s{0,8}"(\w{1,40})"')
_LONGEST_LINE = 500


def build_messages(
    instruction: str, *, kind: str, language: str = "English", earlier: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The conversation's opening: what the agent is, the task and the place of the first screenshot.

    Args:
        instruction: the task's own words; taken as they are, never as a template.
        kind: see `GuiAgentConfig.prompt`.
        language: see `GuiAgentConfig.language`.
        earlier: the replies to screenshots before that one.

    Raises:
        ConfigError: an unknown `kind`.
        MissingDependencyError: the model's own words are not installed.
    """
    if lists_earlier(kind):
        listed = "\n".join(f"Step {number}: {said_action(text, kind)}" for number, text in enumerate(earlier, 1))
        words = official_words.qwen(kind, instruction, listed or "None")
        return [_message("system", _text(words.system)), _message("user", dict(_IMAGE), _text(words.user))]
    if kind == "ui_tars_15":
        words = official_words.ui_tars_15(instruction, language)
    elif kind == "compact":
        words = official_words.Words(_COMPACT_SYSTEM, instruction)
    else:
        raise ConfigError(f"gui_agent.prompt must be one of {', '.join(PROMPT_GRAMMARS)}, got {kind!r}")
    turns = [reply_message(text) for text in earlier]
    return [_message("system", _text(words.system)), _message("user", _text(words.user)), *turns, screenshot_message()]


def lists_earlier(kind: str) -> bool:
    """Whether replies whose screenshots are no longer shown are a list in the user's words; else turns of the model."""
    return kind in ("qwen25_vl", "qwen3_vl")


def said_action(text: str, kind: str) -> str:
    """What a reply says that it does, in a line, as the official runner of `kind` lists it.

    It takes the reply's first line of the form `Action: ...`, Qwen2.5-VL's the whole line and some forms more, else
    names what it does (the runner by pyautogui's function, we by the tool's action).
    """
    heads = ("action:",) if kind == "qwen3_vl" else ("action:", "step", "i will", "i'll", "now i")
    line = next((line for line in map(str.strip, text.split("\n")) if line.lower().startswith(heads)), None)
    if line is None:
        called = _CALLED.search(text)
        line = f"Performing {called[1]} action" if called else ""
    elif kind == "qwen3_vl":
        line = line.split("Action:")[-1].strip()
    # It becomes part of the user's words: what a reply spells out there must not become a turn or an image.
    return line[:_LONGEST_LINE].replace("<|", "< |")


def screenshot_message() -> dict[str, Any]:
    """One screenshot in the conversation; the image itself travels beside the messages, in their order."""
    return _message("user", dict(_IMAGE))


def reply_message(text: str) -> dict[str, Any]:
    """One reply of the model, as written."""
    return _message("assistant", _text(text))


def _message(role: str, *content: dict[str, str]) -> dict[str, Any]:
    # In parts, whatever they are: every message of a conversation has one shape.
    return {"role": role, "content": list(content)}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
