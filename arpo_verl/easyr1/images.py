"""Make screenshots for EasyR1: files that already have the size in which the model sees them.

EasyR1 resizes a picture to `data.max_pixels` by whole numbers, not by multiples of a visual token's side (0.3.3,
`utils/dataset.py: process_image`), so the picture would have another number of tokens than its place in the prompt. We
resize as the model's own processor does, within both limits, and have EasyR1 resize nothing.
"""

from __future__ import annotations

import dataclasses
import io
from typing import Any

from PIL import Image

from arpo_verl.agent.rollout.episode import DecodeScreenshot, decode_in_thread
from arpo_verl.agent.rollout.vision import ImageGeometry
from arpo_verl.lib.config import require
from arpo_verl.lib.images import LazyImage, content_id, image_size, read_image
from arpo_verl.types import Observation, Size

FILE = "model_file"
"""Key in a picture's `info` for its file in the model's size."""


def bounded_geometry(processor: Any, min_pixels: int | None, max_pixels: int | None) -> ImageGeometry:
    """Return how to resize screenshots: as the processor does, within EasyR1's limits.

    Args:
        min_pixels, max_pixels: EasyR1's `data.min_pixels` and `data.max_pixels`.

    Raises:
        ConfigError: the limits exclude each other, or the processor is not a Qwen-VL one.
    """
    own = ImageGeometry.from_processor(processor)
    least, most = max(own.min_pixels, min_pixels or 0), min(own.max_pixels, max_pixels or own.max_pixels)
    expected = f"limits that overlap with the processor's {own.min_pixels} to {own.max_pixels}"
    require(least <= most, "data.min_pixels, data.max_pixels", expected, (min_pixels, max_pixels))
    return dataclasses.replace(own, min_pixels=least, max_pixels=most)


def model_file(screenshot: bytes, geometry: ImageGeometry) -> bytes:
    """Return the screenshot as a file in the model's size; unchanged if it has that size.

    Raises:
        ImageError: the screenshot is not a picture.
    """
    size = image_size(screenshot)
    wanted = geometry.image_size(size)
    if wanted == size:
        return screenshot
    resized, file = read_image(screenshot).resize(wanted, Image.Resampling.BICUBIC), io.BytesIO()
    resized.save(file, "PNG", compress_level=1)
    return file.getvalue()


def shows_files(geometry: ImageGeometry) -> DecodeScreenshot:
    """Return a decoder for episodes: it decodes a screenshot once, to check it, then keeps only its files."""

    async def decode(observation: Observation) -> Image.Image:
        size = Size(*(await decode_in_thread(observation)).size)
        image = LazyImage(size, content_id(observation.screenshot), lambda: observation.screenshot)
        image.info[FILE] = model_file(observation.screenshot, geometry)
        return image

    return decode
