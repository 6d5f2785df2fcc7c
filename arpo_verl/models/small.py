"""The small policies that come with the package: UI-TARS's grammar, and one sentence of 20 tokens, since a small policy
that learned its actions by imitation pays for each token of the prompt."""

from __future__ import annotations

from arpo_verl.actions import ui_tars
from arpo_verl.models.family import ImageLimits, ModelFamily
from arpo_verl.models.messages import Words, in_turns

# Known to the small policies' tokenizers.
_SYSTEM = "You are a GUI agent. You are given a task and screenshots. Reply with the next action."


FAMILY = ModelFamily(
    opening=in_turns(lambda instruction, language: Words(_SYSTEM, instruction)),
    parse=ui_tars.parse_reply,
    format=ui_tars.format_reply,
    grammar="ui_tars",
    coordinates="pixels",
    model_types=(),
    image=ImageLimits(28, 4 * 28 * 28, 16384 * 28 * 28),
)
