"""What a family of models is: the words that its models were trained with, and how they write their actions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from arpo_verl.actions.checks import check_action
from arpo_verl.actions.reply import Reply
from arpo_verl.config import did_you_mean
from arpo_verl.errors import ConfigError
from arpo_verl.models.messages import reply_message, screenshot_message
from arpo_verl.types import Size
from arpo_verl.untrusted import parse_json, printable, read_regular

FULL, WINDOW, SEGMENTS = CONTEXTS = ("full", "window", "segments")
SHIPPED = ("ui_tars_15", "ui_tars_10", "ui_tars_2", "qwen25_vl", "qwen3_vl", "qwen35", "gui_owl", "opencua", "small")
"""Each is made by the module of this package that has its name."""

Messages = list[dict[str, Any]]


class ImageLimits(NamedTuple):
    """How a family's image processor resizes a screenshot, where nobody says otherwise."""

    factor: int
    """Side of the square of pixels that becomes one visual token."""
    min_pixels: int
    max_pixels: int


OF_QWEN25 = ImageLimits(28, 4 * 28 * 28, 16384 * 28 * 28)
"""Of Qwen2-VL, Qwen2.5-VL and the models that were made from them."""


@dataclass(frozen=True)
class ModelFamily:
    """The models that are asked and answer alike. A family of your own is such an object, in a module of yours."""

    opening: Callable[[str, str, Sequence[str]], Messages]
    """(instruction, language, earlier) -> the conversation up to and with the first screenshot. `earlier` are the
    replies to screenshots before that one. The instruction is taken as it is, never as a template. May raise
    `MissingDependencyError`."""
    parse: Callable[[str, Size, Size], Reply]
    """(text, size of the resized image, size of the screen) -> the reply, with points on the screen. Raises
    `ActionParseError` for a text that is not in the family's grammar."""
    format: Callable[[Reply, Size, Size], str]
    """The inverse of `parse`. Raises `ActionParseError` for an action that the grammar has not."""
    grammar: str
    """The name of that grammar. A store of successes is bound to it."""
    coordinates: Literal["pixels", "thousandths"]
    """Of the resized image, or of its sides."""
    model_types: tuple[str, ...]
    """The `model_type`s, in a model's config.json, that the family fits. Empty: any."""
    image: ImageLimits
    lists_earlier: bool = False
    """Whether replies whose screenshots are no longer shown are a list in the user's words; else turns of the model."""
    asks_language: bool = False
    """Whether the words ask for a language of the thoughts."""
    context: str = FULL
    """What of its history a model sees where `gui_agent.context` does not say."""
    window: int = 5
    """Screenshots that the official runner shows, the newest included."""
    conversation: Callable[[str, str, Sequence[str], int], Messages] | None = None
    """(instruction, language, replies, first) -> all messages up to the newest screenshot, of which number `first` is
    the first that is shown. For a model that sees its replies in another form than it wrote them; for evaluation alone,
    since tokens of a row in training are only ever appended. None: an opening, then replies and screenshots in turn."""
    evaluated_only: str = ""
    """Why its models are evaluated over a server alone, and cannot be trained here; "" where they can."""

    def messages(self, instruction: str, language: str, replies: Sequence[str], first: int) -> Messages:
        """What a server is sent for the reply to the newest screenshot, see `conversation`.

        Raises:
            MissingDependencyError: the words are not installed.
        """
        if self.conversation is not None:
            return self.conversation(instruction, language, replies, first)
        messages = self.opening(instruction, language, replies[:first])
        for said in replies[first:]:
            messages += [reply_message(said), screenshot_message()]
        return messages

    def read(self, text: str, image: Size, screen: Size) -> Reply:
        """A reply of the model, whose actions a desktop can do, whatever `parse` lets through.

        Raises:
            ActionError: it is none; says why.
        """
        reply = self.parse(text, image, screen)
        for action in reply.actions:
            check_action(action, screen)
        return reply


@cache
def load_family(name: str) -> ModelFamily:
    """The family of this name.

    Args:
        name: one of `SHIPPED`, or `package.module:NAME`, which is imported: it is code that you trust.

    Raises:
        ConfigError: there is none.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        if name not in SHIPPED:
            raise ConfigError(
                f"gui_agent.model_family must be one of {', '.join(SHIPPED)} or package.module:NAME, got {name!r}"
                + did_you_mean(name, SHIPPED)
            )
        module, attribute = f"{__package__}.{name}", "FAMILY"
    try:
        family = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"gui_agent.model_family must name an importable package.module:NAME, got {name!r}: {error}; install it "
            "for every Python that trains or plays"
        ) from error
    if not isinstance(family, ModelFamily):
        raise ConfigError(f"gui_agent.model_family must name a ModelFamily, got {name!r}, of {type(family).__name__}")
    return family


def check_trainable(name: str) -> None:
    """Refuse a family whose models are evaluated over a server alone.

    Args:
        name: of the family.

    Raises:
        ConfigError: it is one; says why.
    """
    if why := load_family(name).evaluated_only:
        raise ConfigError(f"gui_agent.model_family={name} is for `arpo-verl evaluate` over a server alone: {why}")


def read_model_type(folder: Path) -> str | None:
    """The `model_type` in a model's config.json; None where there is none."""
    try:
        config = parse_json(read_regular(folder / "config.json"))
    except (OSError, ValueError):
        return None
    found = config.get("model_type") if isinstance(config, dict) else None
    return found if isinstance(found, str) else None


def check_model_type(name: str, model_type: str | None, model: str) -> None:
    """Refuse a family that the model is not of: it would answer, and click elsewhere.

    Args:
        name: of the family.
        model_type: see `read_model_type`; with None nothing is checked.
        model: where the model is, for the message.

    Raises:
        ConfigError: the family fits other models; names those that fit this one.
    """
    fitting = load_family(name).model_types
    if not fitting or model_type is None or model_type in fitting:
        return
    others = [other for other in SHIPPED if model_type in load_family(other).model_types]
    remedy = (
        f"set it to {' or '.join(others)}"
        if others
        else "no shipped family fits it; name one of yours by package.module:NAME"
    )
    raise ConfigError(
        f"gui_agent.model_family must fit the model {model}, whose model_type is {printable(model_type)[:80]}, got "
        f"{name}, for {' or '.join(fitting)}; {remedy}"
    )
