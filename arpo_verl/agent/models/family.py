"""A family of models has the prompts that its models were trained with, and the grammar of their actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from arpo_verl.agent.actions.checks import check_action
from arpo_verl.agent.actions.reply import Reply
from arpo_verl.agent.models.messages import reply_message, screenshot_message
from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import did_you_mean, load_named, require
from arpo_verl.lib.untrusted import parse_json, printable, read_regular
from arpo_verl.types import Size

FULL, WINDOW, SEGMENTS = CONTEXTS = ("full", "window", "segments")
_FAMILIES = {
    "ui_tars_15": "arpo_verl.agent.models.ui_tars_15:FAMILY",
    "ui_tars_10": "arpo_verl.agent.models.ui_tars_10:FAMILY",
    "ui_tars_2": "arpo_verl.agent.models.ui_tars_2:FAMILY",
    "qwen25_vl": "arpo_verl.agent.models.qwen25_vl:FAMILY",
    "qwen3_vl": "arpo_verl.agent.models.qwen3_vl:FAMILY",
    "qwen35": "arpo_verl.agent.models.qwen35:FAMILY",
    "gui_owl": "arpo_verl.agent.models.gui_owl:FAMILY",
    "small": "arpo_verl.agent.models.small:FAMILY",
}
SHIPPED = tuple(_FAMILIES)
"""The names of the shipped families."""

Messages = list[dict[str, Any]]


class ImageLimits(NamedTuple):
    """By default a family's image processor resizes a screenshot within these limits."""

    factor: int
    """Side, in pixels, of the square that becomes one visual token."""
    min_pixels: int
    max_pixels: int


OF_QWEN25 = ImageLimits(28, 4 * 28 * 28, 16384 * 28 * 28)
"""The limits of Qwen2-VL, Qwen2.5-VL and models based on them."""


@dataclass(frozen=True)
class ModelFamily:
    """Models of a family get the same prompts and answer in the same form. Your own family is such an object too."""

    opening: Callable[[str, str, Sequence[str]], Messages]
    """(instruction, language, earlier) -> the conversation up to and with the first screenshot. `earlier` are the
    replies to screenshots before that one. The instruction is used as it is, never as a template. May raise
    `MissingDependencyError`."""
    parse: Callable[[str, Size, Size], Reply]
    """(text, size of the resized image, size of the screen) -> the reply, with points on the screen. Raises
    `ActionParseError` for a text that is not in the family's grammar."""
    format: Callable[[Reply, Size, Size], str]
    """The inverse of `parse`. Raises `ActionParseError` for an action that the grammar lacks."""
    grammar: str
    """The name of that grammar, to which a store of successes is bound."""
    coordinates: Literal["pixels", "thousandths"]
    """Pixels of the resized image, or thousandths of its sides."""
    model_types: tuple[str, ...]
    """The `model_type`s of models' config.json that the family fits. Empty: any."""
    image: ImageLimits
    lists_earlier: bool = False
    """Whether replies without their screenshots become a list in the user's message; otherwise turns of the model."""
    asks_language: bool = False
    """Whether the prompt asks for a language of the thoughts."""
    context: str = FULL
    """How much of its history a model sees, if `gui_agent.context` does not say."""
    window: int = 5
    """Number of screenshots that the official runner shows, with the newest."""
    conversation: Callable[[str, str, Sequence[str], int], Messages] | None = None
    """(instruction, language, replies, first) -> all messages up to the newest screenshot; `first` is the number of the
    first one shown. For a model that sees its replies in another form than it wrote them. This works only for
    evaluation, since training only appends tokens to a row. None: an opening, then replies and screenshots in turn."""
    evaluated_only: str = ""
    """Why its models can be evaluated over a server, but not trained here; "" if they can be trained."""

    def messages(self, instruction: str, language: str, replies: Sequence[str], first: int) -> Messages:
        """Return the messages for a server that ask for the reply to the newest screenshot, see `conversation`.

        Raises:
            MissingDependencyError: the prompts are not installed.
        """
        if self.conversation is not None:
            return self.conversation(instruction, language, replies, first)
        messages = self.opening(instruction, language, replies[:first])
        for said in replies[first:]:
            messages += [reply_message(said), screenshot_message()]
        return messages

    def read(self, text: str, image: Size, screen: Size) -> Reply:
        """Parse a reply of the model, and check that a desktop can do its actions.

        Raises:
            ActionError: the reply is not valid; the message says why.
        """
        reply = self.parse(text, image, screen)
        for action in reply.actions:
            check_action(action, screen)
        return reply


@cache
def load_family(name: str) -> ModelFamily:
    """Return the family of this name.

    Args:
        name: one of `SHIPPED`, or `package.module:NAME`, which we import: you must trust that code.

    Raises:
        ConfigError: there is no such family.
    """
    is_known, expected = name in SHIPPED or ":" in name, f"one of {', '.join(SHIPPED)} or package.module:NAME"
    require(is_known, "gui_agent.model_family", expected, name, did_you_mean(name, SHIPPED).removeprefix("; "))
    family = load_named("gui_agent.model_family", _FAMILIES.get(name, name), "package.module:NAME")
    if not isinstance(family, ModelFamily):
        raise ConfigError(f"gui_agent.model_family must name a ModelFamily, got {name!r}, of {type(family).__name__}")
    return family


def check_trainable(name: str) -> None:
    """Refuse a family whose models can only be evaluated over a server.

    Args:
        name: the family's name.

    Raises:
        ConfigError: it is such a family; the message says why.
    """
    if why := load_family(name).evaluated_only:
        raise ConfigError(f"gui_agent.model_family={name} works only with `arpo-verl evaluate` and a server: {why}")


def read_model_type(folder: Path) -> str | None:
    """Read the `model_type` from a model's config.json; None if there is none."""
    try:
        config = parse_json(read_regular(folder / "config.json"))
    except (OSError, ValueError):
        return None
    found = config.get("model_type") if isinstance(config, dict) else None
    return found if isinstance(found, str) else None


def check_model_type(name: str, model_type: str | None, model: str) -> None:
    """Refuse a family that does not fit the model, which would answer, but click in wrong places.

    Args:
        name: the family's name.
        model_type: see `read_model_type`; None skips the check.
        model: the model's path, for the message.

    Raises:
        ConfigError: the family fits other models; the message names families that fit this one.
    """
    fitting = load_family(name).model_types
    if not fitting or model_type is None or model_type in fitting:
        return
    others = [other for other in SHIPPED if model_type in load_family(other).model_types]
    remedy = (
        f"set it to {' or '.join(others)}"
        if others
        else "no shipped family fits it; name your own as package.module:NAME"
    )
    raise ConfigError(
        f"gui_agent.model_family={name} is for models of type {' or '.join(fitting)}, but {model} has the model_type "
        f"{printable(model_type)[:80]}; {remedy}"
    )
