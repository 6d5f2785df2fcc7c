"""The families of Qwen-VL share this: the `computer_use` tool, and a list of earlier actions in the user's message."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

from arpo_verl.agent.actions import computer_use
from arpo_verl.agent.models.family import ImageLimits, Messages, ModelFamily
from arpo_verl.agent.models.messages import Words, image_first
from arpo_verl.agent.models.official_words import assigned, understood

_VARIABLES = (
    "description_prompt_lines",
    "description_prompt",
    "action_description_prompt",
    "tools_def",
    "system_prompt",
    "instruction_prompt",
)
_CALLED = re.compile(r'(?:"action"\s{0,8}:\s{0,8}"|<parameter=action>\s{0,8})(\w{1,40})')
_LONGEST_LINE = 500


def words(file: str, instruction: str, previous_actions: str = "None") -> Words:
    """Return the texts with the tool, its call and the task.

    Args:
        file: the official agent's file.
        instruction: the task's instruction.
        previous_actions: actions without their screenshots, a line each; the agent writes None for none.

    Raises:
        MissingDependencyError: the prompts are not installed.
    """
    given = {
        "json": json,
        "self": SimpleNamespace(coordinate_type="relative"),  # Qwen3-VL's thousandths, its agent's default
        "instruction": instruction,
        "previous_actions_str": previous_actions,
        # The prompt names these only if coordinates are absolute.
        "processed_width": None,
        "processed_height": None,
    }
    found = assigned(file, "predict", _VARIABLES, given)
    with understood(file):
        return Words(found["system_prompt"], found["instruction_prompt"])


def said_action(text: str, heads: tuple[str, ...], whole_line: bool) -> str:
    """Return a line on what a reply does, as the official runner lists it.

    It takes the reply's first line that begins with one of `heads`. Without one, it names the action (the runner by
    pyautogui's function, we by the tool's action).

    Args:
        heads: the starts of such a line, in small letters.
        whole_line: whether to list the whole line, or only the part after the last `Action:`.
    """
    line = next((line for line in map(str.strip, text.split("\n")) if line.lower().startswith(heads)), None)
    if line is None:
        called = _CALLED.search(text)
        line = f"Performing {called[1]} action" if called else ""
    elif not whole_line:
        line = line.split("Action:")[-1].strip()
    # The line becomes part of the user's message, so its text must not become a turn or an image.
    return line[:_LONGEST_LINE].replace("<|", "< |")


def qwen_family(
    file: str, tool: computer_use.Tool, image: ImageLimits, heads: tuple[str, ...], model_types: tuple[str, ...]
) -> ModelFamily:
    """Make a family of Qwen-VL's.

    Args:
        file: the official agent's file.
        heads: see `said_action`; with several, it lists the whole line.
    """

    def opening(instruction: str, language: str, earlier: Sequence[str]) -> Messages:
        lines = [said_action(text, heads, whole_line=len(heads) > 1) for text in earlier]
        listed = "\n".join(f"Step {number}: {line}" for number, line in enumerate(lines, 1))
        return image_first(words(file, instruction, listed or "None"))

    return ModelFamily(
        opening=opening,
        parse=partial(computer_use.parse_reply, tool=tool),
        format=partial(computer_use.format_reply, tool=tool),
        grammar="qwen3_vl" if tool.relative else "qwen25_vl",
        coordinates="thousandths" if tool.relative else "pixels",
        model_types=model_types,
        image=image,
        lists_earlier=True,
    )
