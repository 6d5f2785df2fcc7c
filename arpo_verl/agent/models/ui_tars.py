"""The families of UI-TARS share this: one grammar, and earlier replies as turns of the model."""

from __future__ import annotations

from collections.abc import Callable

from arpo_verl.agent.actions import ui_tars
from arpo_verl.agent.models.family import OF_QWEN25, ModelFamily
from arpo_verl.agent.models.messages import Words, in_turns
from arpo_verl.types import Size


def ui_tars_family(
    words: Callable[[str, str], Words],
    model_types: tuple[str, ...],
    *,
    thousandths: bool = False,
    asks_language: bool = True,
) -> ModelFamily:
    """Make a family with the grammar of UI-TARS.

    Args:
        words: (instruction, language) -> the texts that the model reads first.
        thousandths: whether coordinates are thousandths of the image's sides, or its pixels.
    """
    axes = Size(1000, 1000) if thousandths else None
    return ModelFamily(
        opening=in_turns(words),
        parse=lambda text, image, screen: ui_tars.parse_reply(text, axes or image, screen),
        format=lambda reply, image, screen: ui_tars.format_reply(reply, axes or image, screen),
        grammar="ui_tars_thousandths" if thousandths else "ui_tars",
        coordinates="thousandths" if thousandths else "pixels",
        model_types=model_types,
        image=OF_QWEN25,
        asks_language=asks_language,
    )
