"""A grammar whose coordinates are pixels of the image, for models that give them in thousandths of its sides."""

from __future__ import annotations

from collections.abc import Callable

from arpo_verl.actions.reply import Reply
from arpo_verl.types import Size

_THOUSAND = Size(1000, 1000)


def in_thousandths(
    parse: Callable[[str, Size, Size], Reply], format: Callable[[Reply, Size, Size], str]
) -> tuple[Callable[[str, Size, Size], Reply], Callable[[Reply, Size, Size], str]]:
    """Both functions of a grammar, with an image of 1000 x 1000 in the place of the one that the model saw."""
    return (
        lambda text, image, screen: parse(text, _THOUSAND, screen),
        lambda reply, image, screen: format(reply, _THOUSAND, screen),
    )
