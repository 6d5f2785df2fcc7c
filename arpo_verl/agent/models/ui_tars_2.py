"""UI-TARS-2 and Doubao's vision models think before they reply. OSWorld's runner is `mm_agents/uitars15_v2.py`.

We know no open weights of this family, so it fits any `model_type`; `evaluate` plays it over an endpoint.
"""

from __future__ import annotations

from arpo_verl.agent.models.messages import Words
from arpo_verl.agent.models.official_words import constants, understood
from arpo_verl.agent.models.ui_tars import ui_tars_family

_FILE = "uitars15_v2.py"
_NAMES = ("COMPUTER_USE_DOUBAO",)


def words(instruction: str, language: str) -> Words:
    """Return the prompt of the runner's thinking mode, the only message before the first screenshot.

    Raises:
        MissingDependencyError: the prompt is not installed.
    """
    (template,) = constants(_FILE, _NAMES).values()
    with understood(_FILE):
        return Words("", template.format(language=language, instruction=instruction))


FAMILY = ui_tars_family(words, (), thousandths=True)
