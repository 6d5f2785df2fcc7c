"""OpenCUA (Qwen2.5-VL with its own positions and tokenizer) is only for evaluation. OSWorld's runner is
`mm_agents/opencua/opencua_agent.py`.

It uses the runner's default prompt: thought and action (`l2`), the actions of earlier turns, three screenshots, and
coordinates of the type `qwen25`. The task comes after the newest screenshot, and earlier replies appear only as their
action's description.
"""

from __future__ import annotations

from collections.abc import Sequence

from arpo_verl.actions import opencua
from arpo_verl.models.family import OF_QWEN25, WINDOW, Messages, ModelFamily
from arpo_verl.models.messages import image_part, message, reply_message, screenshot_message, text_part
from arpo_verl.models.official_words import constants, understood

_FILE = "opencua/prompts.py"
_PARTS = {
    "general_computer_instruction": "general_computer_instructions",
    "format_instruction": "l2_format_instruction",
    "thought_instruction": "thought_instructions",
    "action_instruction": "action_instructions",
    "code_instruction": "code_instrucion",
}
_PROMPTS = ("SYSTEM_PROMPT_V2_L2", "INSTRUTION_TEMPLATE", "STEP_TEMPLATE", "ACTION_HISTORY_TEMPLATE")
_PASSWORD = "password"  # noqa: S105  # of OSWorld's machines, which the prompt names
_LONGEST_ACTION = 500


def conversation(instruction: str, language: str, replies: Sequence[str], first: int) -> Messages:
    """See `ModelFamily.conversation`.

    Raises:
        MissingDependencyError: the prompts are not installed.
    """
    found = constants(_FILE, (*_PROMPTS, *_PARTS.values()))
    with understood(_FILE):
        system, task, step, history = (found[name] for name in _PROMPTS)
        parts = {part: found[name] if isinstance(found[name], str) else found[name][0] for part, name in _PARTS.items()}
        parts["general_computer_instruction"] = parts["general_computer_instruction"].format(password=_PASSWORD)
        said = [
            step.format(step_num=number) + history.format(action=_shown(reply))
            for number, reply in enumerate(replies, 1)
        ]
        messages = [message("system", text_part(system.format(**parts)))]
        messages += [reply_message("\n".join(said[:first]))] if first else []
        for words in said[first:]:
            messages += [screenshot_message(), reply_message(words)]
        return [*messages, message("user", image_part(), text_part(task.format(instruction=instruction)))]


def _shown(reply: str) -> str:
    return str(opencua.said_action(reply))[:_LONGEST_ACTION].replace("<|", "< |")


FAMILY = ModelFamily(
    opening=lambda instruction, language, earlier: conversation(instruction, language, earlier, len(earlier)),
    parse=opencua.parse_reply,
    format=opencua.format_reply,
    grammar="opencua",
    coordinates="pixels",
    model_types=("opencua",),
    image=OF_QWEN25,
    context=WINDOW,
    window=3,
    conversation=conversation,
    evaluated_only="transformers and veRL do not know its models",
)
