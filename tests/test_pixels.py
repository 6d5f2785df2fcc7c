"""Pixel values that a row does not carry: made where they are used, the same to the bit."""

import io
import pickle
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from arpo_verl import pixels  # noqa: E402
from arpo_verl.errors import ConfigError, ImageError  # noqa: E402
from arpo_verl.images import read_image  # noqa: E402
from arpo_verl.pixels import LazyPixels, describe_processor  # noqa: E402


def picture(seed, size):
    """A PNG of flat areas and some noise."""
    rng = np.random.default_rng(seed)
    pixels = np.full((size[1], size[0], 3), rng.integers(0, 255, 3), dtype=np.uint8)
    pixels[20:80, 30:180] = rng.integers(0, 255, (60, 150, 3))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()


LIMITS = {"min_pixels": 3136, "max_pixels": 2_116_800}


@pytest.fixture(scope="module")
def processor():
    return transformers.Qwen2VLImageProcessor(min_pixels=3136, max_pixels=100_352)


@pytest.mark.parametrize("kwargs", [{}, LIMITS])
def test_they_are_the_processors_own_to_the_bit(processor, kwargs):
    shots = [picture(1, (640, 480)), picture(2, (640, 480)), picture(3, (800, 600))]
    together = processor(images=[read_image(shot) for shot in shots], return_tensors="pt", **kwargs)["pixel_values"]
    lazy = LazyPixels(shots, describe_processor(processor, kwargs))
    assert torch.equal(lazy.tensor(), together)
    again = pickle.loads(pickle.dumps(lazy))
    assert again == lazy and hash(again) == hash(lazy) and torch.equal(again.tensor(), together)


def test_a_lazy_value_stands_for_its_tensor_in_torchs_functions(processor):
    """As veRL puts a micro-batch together, also beside rows that carry a tensor."""
    one, two = (LazyPixels([picture(seed, (640, 480))], describe_processor(processor)) for seed in (1, 2))
    expected = torch.cat([one.tensor(), two.tensor()])
    assert torch.equal(torch.cat([one, two], dim=0), expected)
    assert torch.equal(torch.cat([one.tensor(), two], dim=0), expected)
    from verl.utils.model import extract_multi_modal_inputs

    grid = torch.tensor([[1, 18, 26]])
    rows = [{"pixel_values": value, "image_grid_thw": grid} for value in (one, two.tensor())]
    inputs = extract_multi_modal_inputs(rows)
    assert torch.equal(inputs["pixel_values"], expected) and inputs["image_grid_thw"].shape == (2, 3)


def test_a_screenshot_is_processed_once_while_the_cache_holds_it(processor, monkeypatch):
    made = []
    real = type(processor).from_dict

    def counting(settings):
        made_by = real(settings)
        return lambda **values: made.append(1) or made_by(**values)

    monkeypatch.setattr(transformers.Qwen2VLImageProcessor, "from_dict", counting)
    monkeypatch.setattr(pixels, "_PATCHES", pixels._Patches(3 * 468 * 1176 * 4))
    pixels._processor.cache_clear()
    shots = [picture(seed, (640, 480)) for seed in range(5)]
    described = describe_processor(processor)
    for first in range(4):  # a window of two that moves on
        LazyPixels(shots[first : first + 2], described).tensor()
    assert len(made) == 5 and len(pixels._PATCHES._made) == 3
    LazyPixels(shots[:1], described).tensor()
    assert len(made) == 6
    pixels._processor.cache_clear()


def test_what_is_no_picture_or_no_image_processor_is_refused(processor):
    with pytest.raises(ImageError):
        LazyPixels([b"no picture"], describe_processor(processor)).tensor()
    with pytest.raises(ConfigError, match="an image processor of transformers, got 'pipeline'"):
        LazyPixels([picture(1, (640, 480))], '["pipeline", {}, {}]').tensor()


def test_a_process_that_only_stores_rows_imports_neither_torch_nor_transformers():
    code = "import sys, arpo_verl.pixels; assert not {'torch', 'transformers', 'PIL'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
