"""A row's pixel values as the training engine has them."""

from collections.abc import Mapping
from typing import Any

from arpo_verl.engines.pixels import LazyPixels


def made(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A row's `multi_modal_inputs` with the pixel values made."""
    return {name: value.tensor() if isinstance(value, LazyPixels) else value for name, value in inputs.items()}
