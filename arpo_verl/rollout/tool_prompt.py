"""The `computer_use` tool as Qwen2.5-VL and Qwen3-VL are told of it: its JSON schema and how to call it.

Tags, tool, actions and arguments are the models' own, by Qwen's cookbooks; the sentences between them are ours.
"""

from __future__ import annotations

import json
from typing import Any

from arpo_verl.types import Size

_ACTIONS = {
    "key": "press the keys together, in order, and release them",
    "type": "type the text",
    "mouse_move": "move the pointer to the coordinate",
    "left_click": "click the left button at the coordinate",
    "left_click_drag": "drag with the left button from the pointer to the coordinate",
    "right_click": "click the right button at the coordinate",
    "middle_click": "click the middle button at the coordinate",
    "double_click": "click the left button twice at the coordinate",
    "triple_click": "click the left button three times at the coordinate",
    "scroll": "turn the wheel: up where pixels is positive, down where it is negative",
    "hscroll": "turn the wheel sideways: right where pixels is positive, left where it is negative",
    "wait": "wait for the screen to change",
    "terminate": "end the task: status failure when it cannot be done",
    "answer": "end the task with an answer in words",
}
_ARGUMENTS = {
    "coordinate": ("array", "[x, y] from the top left corner; for the mouse actions"),
    "text": ("string", "for type and answer"),
    "keys": ("array", "names of keys, such as ctrl, enter, f5, a; for key"),
    "pixels": ("number", "for scroll and hscroll"),
    "time": ("number", "seconds; for wait"),
}
_STATUS = {"type": "string", "enum": ["success", "failure"], "description": "for terminate"}


def tool_prompt(language: str, screen: Size | None) -> str:
    """The system message.

    Args:
        language: of the sentence before each call.
        screen: where the model's coordinates end; None does not say.
    """
    return f"""# Tools

You use a computer by calling this function:
<tools>
{json.dumps(_schema(screen), ensure_ascii=False)}
</tools>

You are given a task, and a screenshot before each of your replies. Reply with one sentence in {language} that says
what you do next, and then with the call as a JSON object within <tool_call></tool_call> tags:
<tool_call>
{{"name": "computer_use", "arguments": <arguments as a JSON object>}}
</tool_call>"""


def _schema(screen: Size | None) -> dict[str, Any]:
    resolution = f" The screen's resolution is {screen.width}x{screen.height}." if screen is not None else ""
    description = (
        f"Use mouse and keyboard of a desktop.{resolution} Click the middle of what you mean, not its edge. Programs "
        "take time to start: wait and look again."
    )
    actions = "\n".join(f"* `{name}`: {what}." for name, what in _ACTIONS.items())
    properties: dict[str, Any] = {"action": {"type": "string", "enum": list(_ACTIONS), "description": actions}}
    properties |= {name: {"type": kind, "description": what} for name, (kind, what) in _ARGUMENTS.items()}
    properties["status"] = _STATUS
    parameters = {"type": "object", "properties": properties, "required": ["action"]}
    return {
        "type": "function",
        "function": {"name": "computer_use", "description": description, "parameters": parameters},
    }
