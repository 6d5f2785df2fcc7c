"""UI-TARS 1.0 (Qwen2-VL) writes coordinates in thousandths. OSWorld's runner is `mm_agents/uitars_agent.py`."""

from __future__ import annotations

from arpo_verl.agent.models.messages import Words
from arpo_verl.agent.models.official_words import constants, understood
from arpo_verl.agent.models.ui_tars import ui_tars_family

_FILE = "prompts.py"
_NAMES = ("UITARS_CALL_USR_ACTION_SPACE", "UITARS_USR_PROMPT_THOUGHT")


def words(instruction: str, language: str) -> Words:
    """Return the prompt of the runner's default mode, `qwen2vl_user`.

    Raises:
        MissingDependencyError: the prompt is not installed.
    """
    found = constants(_FILE, _NAMES)
    action_space, template = (found[name] for name in _NAMES)
    with understood(_FILE):
        user = template.format(action_space=action_space, language=language, instruction=instruction)
    return Words("You are a helpful assistant.", user)


FAMILY = ui_tars_family(words, ("qwen2_vl",), thousandths=True)
