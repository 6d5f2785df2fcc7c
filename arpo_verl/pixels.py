"""Pixel values that are made where they are used: a row carries its screenshots as the desktop sent them.

A screenshot of 1920x1080 is 0.2 MB as PNG and 51 MB as the float32 patches that a Qwen-VL model takes. veRL has a row's
patches made by the rollout worker, and sends them through its queue and Ray's object store to the training process. A
`LazyPixels` stands in their place on that way; the training engine puts a micro-batch's together with `torch.cat`
(veRL 0.9.1, `utils/model.py: extract_multi_modal_inputs`), and there they become a tensor, by PyTorch's own protocol
for objects that stand for one (`__torch_function__`).

It travels as a pickle, through TransferQueue's storage processes: they import this module, which imports next to
nothing.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from arpo_verl.errors import ConfigError

if TYPE_CHECKING:
    import torch

CACHE_BYTES = 1 << 30
"""Of patches that a process keeps, newest first: rows of one episode show the same screenshots."""


class LazyPixels:
    """The patches of some screenshots, (P, C) float32, as their image processor makes them.

    Args:
        screenshots: as the desktop sent them, or encoded anew without loss.
        processor: what the image processor is; see `describe_processor`.
    """

    __slots__ = ("processor", "screenshots")

    def __init__(self, screenshots: Sequence[bytes], processor: str) -> None:
        self.screenshots = tuple(screenshots)
        self.processor = processor

    def __reduce__(self) -> tuple[type[LazyPixels], tuple[tuple[bytes, ...], str]]:
        return LazyPixels, (self.screenshots, self.processor)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LazyPixels):
            return NotImplemented
        return (self.screenshots, self.processor) == (other.screenshots, other.processor)

    def __hash__(self) -> int:
        return hash((self.screenshots, self.processor))

    def tensor(self) -> torch.Tensor:
        """Make them.

        Raises:
            ImageError: a screenshot is no picture.
        """
        import torch

        return torch.cat([_PATCHES.get(screenshot, self.processor) for screenshot in self.screenshots])

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Any function of PyTorch's that is given one takes the tensor."""
        return function(*map(_made, args), **{name: _made(value) for name, value in (kwargs or {}).items()})


def describe_processor(image_processor: Any, mm_processor_kwargs: Mapping[str, Any] | None = None) -> str:
    """What a `LazyPixels` is made by, as JSON: the class of transformers, its settings, the arguments of its call."""
    settings = {name: value for name, value in image_processor.to_dict().items() if name != "processor_class"}
    described = [type(image_processor).__name__, settings, dict(mm_processor_kwargs or {})]
    return json.dumps(described, sort_keys=True)


def _made(value: Any) -> Any:
    if isinstance(value, LazyPixels):
        return value.tensor()
    return type(value)(map(_made, value)) if isinstance(value, (list, tuple)) else value


@lru_cache(maxsize=4)
def _processor(described: str) -> tuple[Any, dict[str, Any]]:
    import transformers

    name, settings, kwargs = json.loads(described)
    if not name.endswith(("ImageProcessor", "ImageProcessorFast")):
        raise ConfigError(f"pixel values must be made by an image processor of transformers, got {name!r}")
    return getattr(transformers, name).from_dict(settings), kwargs


class _Patches:
    """The newest screenshots' patches, each made once."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._made: OrderedDict[tuple[bytes, str], torch.Tensor] = OrderedDict()
        self._bytes = 0

    def get(self, screenshot: bytes, processor: str) -> torch.Tensor:
        key = sha256(screenshot).digest(), processor
        if key in self._made:
            self._made.move_to_end(key)
            return self._made[key]
        from arpo_verl.images import read_image

        image_processor, kwargs = _processor(processor)
        patches: torch.Tensor = image_processor(images=[read_image(screenshot)], return_tensors="pt", **kwargs)[
            "pixel_values"
        ]
        self._made[key] = patches
        self._bytes += patches.nbytes
        while self._bytes > self._capacity_bytes and len(self._made) > 1:
            self._bytes -= self._made.popitem(last=False)[1].nbytes
        return patches


_PATCHES = _Patches(CACHE_BYTES)
