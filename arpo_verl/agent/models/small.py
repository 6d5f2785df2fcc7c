"""The shipped small policies use UI-TARS's grammar and one sentence of 20 tokens: they learned their actions by
imitation, and each token of the prompt costs them time."""

from __future__ import annotations

from arpo_verl.agent.models.messages import Words
from arpo_verl.agent.models.ui_tars import ui_tars_family

# The small policies' tokenizers know this sentence.
_SYSTEM = "You are a GUI agent. You are given a task and screenshots. Reply with the next action."


FAMILY = ui_tars_family(lambda instruction, language: Words(_SYSTEM, instruction), (), asks_language=False)
