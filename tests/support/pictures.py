"""Pictures as a desktop sends them, drawn from a seed."""

import io

import numpy as np
from PIL import Image


def screenshot(seed, size=(640, 480)):
    """A PNG as a desktop sends it: flat areas, some noise."""
    rng = np.random.default_rng(seed)
    pixels = np.full((size[1], size[0], 3), rng.integers(0, 255, 3), dtype=np.uint8)
    pixels[20:80, 30:180] = rng.integers(0, 255, (60, 150, 3))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()
