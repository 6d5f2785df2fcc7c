"""The small policies that come with the package: UI-TARS's grammar, and one sentence of 20 tokens, since a small policy
that learned its actions by imitation pays for each token of the prompt."""

from __future__ import annotations

from arpo_verl.models.messages import Words
from arpo_verl.models.ui_tars import ui_tars_family

# Known to the small policies' tokenizers.
_SYSTEM = "You are a GUI agent. You are given a task and screenshots. Reply with the next action."


FAMILY = ui_tars_family(lambda instruction, language: Words(_SYSTEM, instruction), (), asks_language=False)
