"""`benchmarks/queue_bytes.py`: a row's bytes are those of its pixel values, or of its screenshots."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl")

import queue_bytes  # noqa: E402
from support.pictures import screenshot  # noqa: E402
from transformers import Qwen2VLImageProcessor  # noqa: E402

from arpo_verl.pixels import pixel_values  # noqa: E402

pytestmark = pytest.mark.study


def test_rows_with_screenshots_are_compared_to_the_same_with_pixel_values():
    shots = [screenshot(1), screenshot(2)]
    inputs = {"pixel_values": pixel_values(shots, Qwen2VLImageProcessor()), "image_grid_thw": torch.ones(2, 3)}
    row = {"input_ids": torch.arange(100), "multi_modal_inputs": inputs, "screenshots": shots}
    figures = queue_bytes.compare([row, row])
    sent, pixels = 2 * sum(map(len, shots)), 2 * inputs["pixel_values"].tensor().nbytes
    assert 2 * sent < figures["bytes_with_screenshots"] < 2 * sent + 8000
    assert sent + pixels < figures["bytes_with_pixels"] < sent + pixels + 8000
    assert figures["bytes_ratio"] == figures["bytes_with_pixels"] / figures["bytes_with_screenshots"] > 30
