"""UI-TARS 1.0 (Qwen2-VL), which gives coordinates in thousandths. OSWorld's runner is `mm_agents/uitars_agent.py`."""

from __future__ import annotations

from arpo_verl.actions import ui_tars
from arpo_verl.models.family import ImageLimits, ModelFamily
from arpo_verl.models.messages import Words, in_turns
from arpo_verl.models.official_words import constants, understood
from arpo_verl.models.thousandths import in_thousandths

_FILE = "prompts.py"
_NAMES = ("UITARS_CALL_USR_ACTION_SPACE", "UITARS_USR_PROMPT_THOUGHT")


def words(instruction: str, language: str) -> Words:
    """The prompt of the runner's default mode, `qwen2vl_user`.

    Raises:
        MissingDependencyError: the words are not installed.
    """
    found = constants(_FILE, _NAMES)
    action_space, template = (found[name] for name in _NAMES)
    with understood(_FILE):
        user = template.format(action_space=action_space, language=language, instruction=instruction)
    return Words("You are a helpful assistant.", user)


_PARSE, _FORMAT = in_thousandths(ui_tars.parse_reply, ui_tars.format_reply)

FAMILY = ModelFamily(
    opening=in_turns(words),
    parse=_PARSE,
    format=_FORMAT,
    grammar="ui_tars_thousandths",
    coordinates="thousandths",
    model_types=("qwen2_vl",),
    image=ImageLimits(28, 4 * 28 * 28, 16384 * 28 * 28),
    asks_language=True,
)
