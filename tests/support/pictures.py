"""Pictures as a desktop sends them."""

import io

import numpy as np
from PIL import Image


def png(colour="white", size=(96, 64)):
    """All of one colour."""
    return _encoded(Image.new("RGB", size, colour))


def screenshot(seed, size=(640, 480)):
    """Flat areas, some noise."""
    rng = np.random.default_rng(seed)
    pixels = np.full((size[1], size[0], 3), rng.integers(0, 255, 3), dtype=np.uint8)
    pixels[20:80, 30:180] = rng.integers(0, 255, (60, 150, 3))
    return _encoded(Image.fromarray(pixels))


def _encoded(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
