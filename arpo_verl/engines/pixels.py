"""Make pixel values only where they are used: a row carries its screenshots as the desktop sent them.

A screenshot of 1920x1080 has 0.2 MB as PNG, but 51 MB as the float32 patches that a Qwen-VL model takes. In veRL the
rollout worker makes a row's patches and sends them through veRL's queue to the training process. We send a `LazyPixels`
instead. The training engine joins a micro-batch's with `torch.cat` (veRL 0.9.1, `utils/model.py:
extract_multi_modal_inputs`), and there they become a tensor, by PyTorch's protocol for objects that stand for one
(`__torch_function__`).

It travels as a pickle through TransferQueue's storage processes. They import this module, so it imports next to
nothing.

A step needs a row's patches two or three times, for log-probs and for the update. In between we keep the decoded and
resized screenshots, as the bytes of one frame: an eighth of the patches, which are float32 and hold the frame twice.
The next step's log-probs drop them.
"""

from __future__ import annotations

import json
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from PIL import Image

logger = logging.getLogger(__name__)

KEPT_BYTES = 8 << 30
"""Most bytes of resized screenshots that a process keeps, newest first: 1,350 screenshots at 1080p."""
THREADS = 4
"""Threads that make a row's patches: 15 screenshots at 1080p take 1.4 s of one core, or 0.5 s from kept ones."""


class LazyPixels:
    """Stands for the patches of some screenshots, (P, C) float32, as their image processor makes them.

    Args:
        screenshots: the desktop's files, or losslessly re-encoded ones.
        processor: JSON from `pixel_values`: the processor's class, its settings and the arguments of its call.
    """

    __slots__ = ("processor", "screenshots")

    def __init__(self, screenshots: Sequence[bytes], processor: str) -> None:
        self.screenshots = tuple(screenshots)
        self.processor = processor

    def __reduce__(self) -> tuple[Callable[..., LazyPixels], tuple[tuple[bytes, ...], str]]:
        return _arrived, (self.screenshots, self.processor)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LazyPixels):
            return NotImplemented
        return (self.screenshots, self.processor) == (other.screenshots, other.processor)

    def __hash__(self) -> int:
        return hash((self.screenshots, self.processor))

    def tensor(self) -> torch.Tensor:
        """Make the patches.

        Raises:
            ImageError: a screenshot is not a picture, or is larger than any screen.
        """
        import torch

        _KEPT.used_by(update=torch.is_grad_enabled())
        processor = _processor(self.processor)
        different = list(dict.fromkeys(self.screenshots))  # an unchanged screen appears several times
        resized = _threads().map(
            lambda screenshot: _KEPT.get(processor.key(screenshot), lambda: processor.resized(screenshot)), different
        )
        by_screenshot = dict(zip(different, resized, strict=True))
        shown = [by_screenshot[screenshot] for screenshot in self.screenshots]
        made = torch.empty(sum(map(len, shown)), *processor.shape(shown[0]))
        list(_threads().map(processor.write, shown, made.split([len(each) for each in shown])))
        return made

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Give the tensor to any function of PyTorch that gets this object. A lone row needs no joining."""
        import torch

        if function is torch.cat and args and len(args[0]) == 1:
            return _made(args[0][0])
        return function(*map(_made, args), **{name: _made(value) for name, value in (kwargs or {}).items()})


def _arrived(screenshots: tuple[bytes, ...], processor: str) -> LazyPixels:
    """Check that this process could train on a row that arrives in it.

    Raises:
        PatchLostError: it could not read it.
    """
    from arpo_verl.engines.upstream_patches import EQUAL_LENGTHS

    EQUAL_LENGTHS.check()
    return LazyPixels(screenshots, processor)


def pixel_values(
    screenshots: Sequence[bytes], image_processor: Any, mm_processor_kwargs: Mapping[str, Any] | None = None
) -> LazyPixels | torch.Tensor:
    """Return the patches of these screenshots, (P, C) float32, made later if other processes have the processor too.

    Args:
        screenshots: the screenshots in order.
        image_processor: transformers' own is used later. One from a model's files makes the patches now.
        mm_processor_kwargs: the arguments of its call.
    """
    import transformers

    kwargs, kind = dict(mm_processor_kwargs or {}), type(image_processor)
    if getattr(transformers, kind.__name__, None) is kind:
        settings = {name: value for name, value in image_processor.to_dict().items() if name != "processor_class"}
        return LazyPixels(screenshots, json.dumps([kind.__name__, settings, kwargs], sort_keys=True))
    from arpo_verl.lib.images import read_image

    _tell_once(f"rows carry pixel values, not screenshots: {kind.__name__} is not an image processor of transformers")
    images = [read_image(screenshot) for screenshot in screenshots]
    made: torch.Tensor = image_processor(images=images, return_tensors="pt", **kwargs)["pixel_values"]
    return made


@cache
def _tell_once(message: str) -> None:
    logger.warning(message)


def _made(value: Any) -> Any:
    if isinstance(value, LazyPixels):
        return value.tensor()
    return type(value)(map(_made, value)) if isinstance(value, (list, tuple)) else value


class _Processor:
    """An image processor whose work has two parts. The result of the longer one is small and can be kept."""

    def __init__(self, described: str) -> None:
        import transformers

        self._described = described
        name, settings, self._kwargs = json.loads(described)
        self._processor = getattr(transformers, name).from_dict(settings)
        self._has_parts: bool | None = None

    def key(self, screenshot: bytes) -> tuple[bytes, str]:
        return sha256(screenshot).digest(), self._described

    def resized(self, screenshot: bytes) -> torch.Tensor:
        """Return the first frame of the patches as bytes, (P, colours, height, width). If the processor has no known
        parts, return the patches."""
        from arpo_verl.lib.images import read_image

        image = read_image(screenshot)
        if self._has_parts is None:
            self._has_parts = self._agrees(image)
        return self._frame(image) if self._has_parts else self._whole(image)

    def shape(self, resized: torch.Tensor) -> Sequence[int]:
        """Return the shape of a patch made from the result of `resized`."""
        one = resized.shape[1:]
        return one if self._has_parts is False else [one.numel() * self._processor.temporal_patch_size]

    def write(self, resized: torch.Tensor, patches: torch.Tensor) -> None:
        """Write the patches made from the result of `resized` into `patches`, float32."""
        if self._has_parts is False:
            patches.copy_(resized)
            return
        made_by = self._processor
        scale = (True, made_by.rescale_factor, True, tuple(made_by.image_mean), tuple(made_by.image_std))
        frame: torch.Tensor = made_by.rescale_and_normalize(resized, *scale)
        count, colours, height, width = frame.shape
        patches.view(count, colours, -1, height, width).copy_(frame.unsqueeze(2))

    def _agrees(self, image: Image.Image) -> bool:
        """Return whether the two parts give bit by bit what the processor gives."""
        import torch

        try:
            frame, whole = self._frame(image), self._whole(image)
            parts = torch.empty(len(frame), *self.shape(frame))
            self.write(frame, parts)
            return torch.equal(parts, whole)
        except (AttributeError, RuntimeError, TypeError, ValueError):  # another family, or no rescaling
            return False

    def _frame(self, image: Image.Image) -> torch.Tensor:
        """Decode, resize and cut into patches only (`Qwen2VLImageProcessor._preprocess`, transformers 5.9)."""
        side, frames = self._processor.patch_size, self._processor.temporal_patch_size
        patches = self._whole(image, do_rescale=False, do_normalize=False)
        return patches.view(len(patches), -1, frames, side, side)[:, :, 0].contiguous()

    def _whole(self, image: Image.Image, **kwargs: Any) -> torch.Tensor:
        made = self._processor(images=[image], return_tensors="pt", **{**self._kwargs, **kwargs})
        patches: torch.Tensor = made["pixel_values"]
        return patches


@lru_cache(maxsize=4)
def _processor(described: str) -> _Processor:
    return _Processor(described)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(THREADS, len(os.sched_getaffinity(0))), "pixels")


class KeptTensors:
    """Keeps the newest tensors, each once; several threads may use it.

    Args:
        capacity_bytes: most bytes to keep.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._tensors: OrderedDict[Hashable, torch.Tensor] = OrderedDict()
        self.num_bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._tensors)

    def get(self, key: Hashable, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the tensor of this key; make it if it is not kept."""
        with self._lock:
            if key in self._tensors:
                self._tensors.move_to_end(key)
                return self._tensors[key]
        made = make()
        with self._lock:
            if key not in self._tensors:
                self._tensors[key] = made
                self.num_bytes += made.nbytes
            while self.num_bytes > self._capacity_bytes:
                self.num_bytes -= self._tensors.popitem(last=False)[1].nbytes
        return made

    def clear(self) -> None:
        """Drop all tensors."""
        with self._lock:
            self._tensors.clear()
            self.num_bytes = 0


class ResizedScreenshots(KeptTensors):
    """Keeps the resized screenshots of one training step."""

    _by_update = False

    def used_by(self, update: bool) -> None:
        """Note whether log-probs (made without gradients) or an update need them. Log-probs after an update belong to
        the next step, so drop all: otherwise every process of a long run would hold `capacity_bytes` for nothing."""
        if self._by_update and not update:
            self.clear()
        self._by_update = update


_KEPT = ResizedScreenshots(KEPT_BYTES)
