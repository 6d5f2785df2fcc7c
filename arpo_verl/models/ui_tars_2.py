"""UI-TARS-2 and Doubao's vision models, which think before they reply. OSWorld's runner is `mm_agents/uitars15_v2.py`.

No open weights of this family are known to us, so it fits any `model_type`; `evaluate` plays it over an endpoint.
"""

from __future__ import annotations

from arpo_verl.actions import ui_tars
from arpo_verl.models.family import ImageLimits, ModelFamily
from arpo_verl.models.messages import Words, in_turns
from arpo_verl.models.official_words import constants, understood
from arpo_verl.models.thousandths import in_thousandths

_FILE = "uitars15_v2.py"
_NAMES = ("COMPUTER_USE_DOUBAO",)


def words(instruction: str, language: str) -> Words:
    """The prompt of the runner's mode that thinks, the only message before the first screenshot.

    Raises:
        MissingDependencyError: the words are not installed.
    """
    (template,) = constants(_FILE, _NAMES).values()
    with understood(_FILE):
        return Words("", template.format(language=language, instruction=instruction))


_PARSE, _FORMAT = in_thousandths(ui_tars.parse_reply, ui_tars.format_reply)

FAMILY = ModelFamily(
    opening=in_turns(words),
    parse=_PARSE,
    format=_FORMAT,
    grammar="ui_tars_thousandths",
    coordinates="thousandths",
    model_types=(),
    image=ImageLimits(28, 4 * 28 * 28, 16384 * 28 * 28),
    asks_language=True,
)
