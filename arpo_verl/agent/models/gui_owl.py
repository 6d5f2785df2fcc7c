"""The family of GUI-Owl 1.0 (Qwen2.5-VL). OSWorld's runner is `mm_agents/owl_agent.py`.

The runner shows one screenshot, and a list of the earlier replies' conclusions. Its prompt names a screen of 1932x1092
pixels, the size of a resized screenshot of 1920x1080.
"""

from __future__ import annotations

from collections.abc import Sequence

from arpo_verl.agent.actions import owl
from arpo_verl.agent.models.family import OF_QWEN25, WINDOW, Messages, ModelFamily
from arpo_verl.agent.models.messages import image_part, message, text_part
from arpo_verl.agent.models.official_words import assigned, constants, understood

_FILE = "owl_agent.py"
_LONGEST_LINE = 500


def _opening(instruction: str, language: str, earlier: Sequence[str]) -> Messages:
    lines = (owl.conclusion(reply)[:_LONGEST_LINE].replace("<|", "< |") for reply in earlier)
    listed = "".join(f"Step {number}: {line}\n" for number, line in enumerate(lines, 1))
    (prompt,) = constants(_FILE, ("OWL_PROMPT",)).values()
    found = assigned(_FILE, "get_prompt", ("user_prompt",), {})
    with understood(_FILE):
        history = listed or "No history. This is the first step."
        user = found["user_prompt"].format(instruction=instruction, history=history)
    return [
        message("system", text_part("You are a helpful assistant."), text_part(prompt)),
        message("user", text_part(user), text_part("Current screenshot:\n"), image_part()),
    ]


FAMILY = ModelFamily(
    opening=_opening,
    parse=owl.parse_reply,
    format=owl.format_reply,
    grammar="gui_owl",
    coordinates="pixels",
    model_types=("qwen2_5_vl",),
    image=OF_QWEN25,
    lists_earlier=True,
    context=WINDOW,
    window=1,
)
