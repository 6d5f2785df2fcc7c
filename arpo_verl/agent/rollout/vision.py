"""Count a screenshot's visual tokens: compute how the processor will resize an image, without processing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

from arpo_verl.errors import ConfigError, DesktopLostError, ImageError
from arpo_verl.lib.config import require
from arpo_verl.lib.images import read_image
from arpo_verl.types import Size


@dataclass(frozen=True)
class ImageGeometry:
    """How a Qwen-VL image processor resizes: sides to multiples of `factor`, area between two bounds in pixels."""

    factor: int
    """Side of the square of pixels that becomes one visual token."""
    min_pixels: int
    max_pixels: int

    @classmethod
    def from_processor(cls, processor: Any, mm_processor_kwargs: Mapping[str, Any] | None = None) -> ImageGeometry:
        """Read it from a Qwen2-VL, Qwen2.5-VL or Qwen3-VL processor.

        Args:
            processor: the processor, with its image processor.
            mm_processor_kwargs: veRL's `data.mm_processor_kwargs`, which the processor will get.

        Raises:
            ConfigError: the processor belongs to another family, so we cannot compute its tokens; or only one of the
                two limits is given.
        """
        image_processor: Any = getattr(processor, "image_processor", None)
        kwargs = dict(mm_processor_kwargs or {})
        size = kwargs.get("size") or getattr(image_processor, "size", None) or {}
        if check_pixel_limits(kwargs):
            size = {"shortest_edge": kwargs["min_pixels"], "longest_edge": kwargs["max_pixels"]}
        try:
            factor = image_processor.patch_size * image_processor.merge_size
            return cls(int(factor), int(size["shortest_edge"]), int(size["longest_edge"]))
        except (AttributeError, KeyError, TypeError) as error:
            raise ConfigError(
                f"the policy's processor must be a Qwen-VL one (as UI-TARS-1.5's is), got {type(processor).__name__} "
                f"with {type(image_processor).__name__}"
            ) from error

    def image_size(self, screen: Size) -> Size:
        """Return the size to which a screenshot of size `screen` is resized: the model's coordinates refer to it."""
        try:  # without torch
            from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
        except ImportError:  # before Transformers 5
            from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        limits = {"min_pixels": self.min_pixels, "max_pixels": self.max_pixels}
        height, width = smart_resize(screen.height, screen.width, factor=self.factor, **limits)
        return Size(width, height)

    def num_tokens(self, screen: Size) -> int:
        """Return the number of visual tokens of a screenshot of size `screen`."""
        image = self.image_size(screen)
        return (image.width // self.factor) * (image.height // self.factor)


def check_pixel_limits(mm_processor_kwargs: Mapping[str, Any]) -> bool:
    """Return whether the two limits in pixels are given.

    vLLM uses a single one, but training does not: `Qwen2VLImageProcessor._standardize_kwargs` (transformers 5.9) takes
    both or none, `Qwen2VLProcessingInfo._get_vision_info` (vLLM 0.24) takes each.

    Raises:
        ConfigError: only one of them is given.
    """
    limits = {name: mm_processor_kwargs.get(name) for name in ("min_pixels", "max_pixels")}
    given = [name for name, limit in limits.items() if limit is not None]
    require(
        len(given) != 1,
        "data.mm_processor_kwargs",
        "with both min_pixels and max_pixels or neither: vLLM uses one alone, the processor of training does not",
        limits,
        "give both; the model's own are in its preprocessor_config.json",
    )
    return bool(given)


def decode_screenshot(screenshot: bytes) -> Image.Image:
    """Decode a screenshot as rollout, training and replay all do: to RGB, at the screen's own size.

    Raises:
        DesktopLostError: the bytes are not a picture, or are larger than any screen.
    """
    try:
        return read_image(screenshot)
    except ImageError as error:
        raise DesktopLostError(f"the desktop must send a PNG or JPEG screenshot: {error}") from error
