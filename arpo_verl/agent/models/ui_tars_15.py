"""UI-TARS-1.5 (Qwen2.5-VL) is the paper's model. OSWorld's runner is `mm_agents/uitars15_v1.py`."""

from __future__ import annotations

from arpo_verl.agent.models.messages import Words
from arpo_verl.agent.models.official_words import constants, understood
from arpo_verl.agent.models.ui_tars import ui_tars_family

_FILE = "uitars15_v1.py"
_NAMES = ("UITARS_NORMAL_ACTION_SPACE", "UITARS_CALL_USR_ACTION_SPACE", "UITARS_USR_PROMPT_THOUGHT")


def words(instruction: str, language: str) -> Words:
    """Return the prompt, with `call_user` in its action space.

    The agent's mode for this model (`qwen25vl_normal`) leaves out `call_user`, but without it no infeasible task can be
    solved. We take its line from the agent's other action space.

    Raises:
        MissingDependencyError: the prompt is not installed.
    """
    found = constants(_FILE, _NAMES)
    action_space, with_call_user, template = (found[name] for name in _NAMES)
    with understood(_FILE):
        call_user = next(line for line in with_call_user.splitlines(keepends=True) if line.startswith("call_user("))
        user = template.format(action_space=action_space + call_user, language=language, instruction=instruction)
    return Words("You are a helpful assistant.", user)


FAMILY = ui_tars_family(words, ("qwen2_5_vl",))
