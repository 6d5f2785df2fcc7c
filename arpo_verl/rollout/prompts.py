"""What the model is told, and the shape of the conversation; used alike by the agent loop, the dataset and imitation.

A conversation is `build_messages(...)`, then in turn a `screenshot_message()` and the model's reply. Every screenshot,
the first one too, is a user message of its own, as in UI-TARS's own runner, so that all turns look the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from arpo_verl.actions.grammars import GRAMMARS
from arpo_verl.errors import ConfigError
from arpo_verl.rollout.tool_prompt import tool_prompt
from arpo_verl.types import Size

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


_SYSTEM = "You are a helpful assistant."

# The prompt that UI-TARS-1.5 was trained with, and must therefore see again to the letter; from the UI-TARS
# repository (ByteDance, Apache-2.0), with `call_user`, which is the answer to an infeasible task.
_UI_TARS_15 = r"""You are a GUI agent. You are given a task and your action history, with screenshots. You need to perform the next action to complete the task. 

## Output Format
```
Thought: ...
Action: ...
```

## Action Space

click(start_box='<|box_start|>(x1,y1)<|box_end|>')
left_double(start_box='<|box_start|>(x1,y1)<|box_end|>')
right_single(start_box='<|box_start|>(x1,y1)<|box_end|>')
drag(start_box='<|box_start|>(x1,y1)<|box_end|>', end_box='<|box_start|>(x3,y3)<|box_end|>')
hotkey(key='')
type(content='') #If you want to submit your input, use "\n" at the end of `content`.
scroll(start_box='<|box_start|>(x1,y1)<|box_end|>', direction='down or up or right or left')
wait() #Sleep for 5s and take a screenshot to check for any changes.
finished(content='xxx') # Use escape characters \\', \\", and \\n in content part to ensure we can parse the content in normal python string format.
call_user() # Submit the task and call the user when the task is unsolvable, or when you need the user's help.

## Note
- Use {language} in `Thought` part.
- Write a small plan and finally summarize your next action (with its target element) in one sentence in `Thought` part.

## User Instruction
"""  # noqa: E501, W291  the model's own wording, one line a sentence

# Known to the small policy's tokenizer and about 20 tokens long.
_COMPACT_SYSTEM = "You are a GUI agent. You are given a task and screenshots. Reply with the next action."


# Qwen3-VL gives coordinates in thousandths, and is told so by a resolution.
_THOUSAND = Size(1000, 1000)


def build_messages(
    instruction: str, *, kind: str = "ui_tars_15", language: str = "English", image_size: Size | None = None
) -> list[dict[str, Any]]:
    """The conversation's opening: what the agent is and the task, before the first screenshot.

    Args:
        instruction: the task's own words; taken as they are, never as a template.
        kind: see `GuiAgentConfig.prompt`.
        language: see `GuiAgentConfig.language`.
        image_size: the size of the resized screenshot, which `qwen25_vl` tells the model; None where none is known.

    Raises:
        ConfigError: an unknown `kind`.
    """
    if kind == "ui_tars_15":
        system, user = _SYSTEM, _UI_TARS_15.replace("{language}", language) + instruction
    elif kind == "compact":
        system, user = _COMPACT_SYSTEM, instruction
    elif kind in ("qwen25_vl", "qwen3_vl"):
        system, user = tool_prompt(language, image_size if kind == "qwen25_vl" else _THOUSAND), instruction
    else:
        raise ConfigError(f"gui_agent.prompt must be one of {', '.join(PROMPT_GRAMMARS)}, got {kind!r}")
    return [{"role": "system", "content": _text(system)}, {"role": "user", "content": _text(user)}]


def screenshot_message() -> dict[str, Any]:
    """One screenshot in the conversation; the image itself travels beside the messages, in their order."""
    return {"role": "user", "content": [{"type": "image"}]}


def reply_message(text: str) -> dict[str, Any]:
    """One reply of the model, as written."""
    return {"role": "assistant", "content": _text(text)}


def _text(text: str) -> list[dict[str, str]]:
    # In parts, as a screenshot's message is: every message of a conversation has one shape.
    return [{"type": "text", "text": text}]
