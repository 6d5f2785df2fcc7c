"""Pixel values that a row does not carry: made where they are used, the same to the bit."""

import io
import pickle
import subprocess
import sys

import pytest
from PIL import Image
from support.pictures import screenshot as picture

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from arpo_verl.engines import pixels  # noqa: E402
from arpo_verl.engines.pixels import pixel_values  # noqa: E402
from arpo_verl.errors import ImageError  # noqa: E402
from arpo_verl.lib.images import read_image  # noqa: E402

TWO_PARTS = {"do_rescale": False, "do_normalize": False}
LIMITS = {"min_pixels": 3136, "max_pixels": 2_116_800}


@pytest.fixture(scope="module")
def processor():
    return transformers.Qwen2VLImageProcessor(size={"shortest_edge": 3136, "longest_edge": 100_352})


@pytest.mark.parametrize("kwargs", [{}, LIMITS])
def test_they_are_the_processors_own_to_the_bit(processor, kwargs):
    shots = [picture(1, (640, 480)), picture(2, (640, 480)), picture(3, (800, 600))]
    together = processor(images=[read_image(shot) for shot in shots], return_tensors="pt", **kwargs)["pixel_values"]
    lazy = pixel_values(shots, processor, kwargs)
    assert torch.equal(lazy.tensor(), together)
    again = pickle.loads(pickle.dumps(lazy))
    assert again == lazy and hash(again) == hash(lazy) and torch.equal(again.tensor(), together)


def test_a_lazy_value_stands_for_its_tensor_in_torchs_functions(processor):
    """As veRL puts a micro-batch together, also beside rows that carry a tensor."""
    one, two = (pixel_values([picture(seed, (640, 480))], processor) for seed in (1, 2))
    expected = torch.cat([one.tensor(), two.tensor()])
    assert torch.equal(torch.cat([one, two], dim=0), expected)
    assert torch.equal(torch.cat([one.tensor(), two], dim=0), expected)
    assert torch.equal(torch.cat([one]), one.tensor())
    from verl.utils.model import extract_multi_modal_inputs

    grid = torch.tensor([[1, 18, 26]])
    rows = [{"pixel_values": value, "image_grid_thw": grid} for value in (one, two.tensor())]
    inputs = extract_multi_modal_inputs(rows)
    assert torch.equal(inputs["pixel_values"], expected) and inputs["image_grid_thw"].shape == (2, 3)


@pytest.fixture
def processings(monkeypatch):
    """Screenshots that were decoded and resized, in a process that begins now and has room for three of 640x480."""
    seen = []
    whole = pixels._Processor._whole
    monkeypatch.setattr(pixels._Processor, "_whole", lambda *a, **kw: seen.append(kw) or whole(*a, **kw))
    monkeypatch.setattr(pixels, "_KEPT", pixels.ResizedScreenshots(3 * 34 * 46 * 3 * 14 * 14))
    pixels._processor.cache_clear()
    yield seen
    pixels._processor.cache_clear()


def test_a_screenshot_is_processed_once_while_it_is_kept(processor, processings):
    processor = type(processor)(size={"shortest_edge": 3136, "longest_edge": 640 * 480})
    shots = [picture(seed, (640, 480)) for seed in range(5)]
    pixel_values(shots[:1], processor).tensor()
    assert processings == [TWO_PARTS, {}, TWO_PARTS], "the first is also compared to what is made in one go"
    for first in range(4):  # a window of two that moves on
        pixel_values([*shots[first : first + 2]] * 2, processor).tensor()
    assert len(processings) == 3 + 4 and len(pixels._KEPT) == 3
    pixel_values(shots[2:], processor).tensor()
    assert len(processings) == 3 + 4
    pixel_values(shots[:1], processor).tensor()
    assert len(processings) == 3 + 5
    assert pixels._KEPT.num_bytes * 8 == pixel_values(shots[2:], processor).tensor().nbytes


def test_what_is_kept_is_one_steps(processor, processings, monkeypatch):
    """Log-probs, the reference's and two mini-batches' updates, over steps: each screenshot once, and none for long."""
    monkeypatch.setattr(pixels, "_KEPT", pixels.ResizedScreenshots(pixels.KEPT_BYTES))
    processor = type(processor)(size={"shortest_edge": 3136, "longest_edge": 640 * 480})
    for step in range(5):
        rows = [pixel_values([picture(10 * step + row, (640, 480))], processor) for row in range(3)]
        for gradients in (False, False, True):
            with torch.set_grad_enabled(gradients):
                for row in rows:
                    row.tensor()
        assert len(processings) == 2 + 3 * (step + 1)
        assert len(pixels._KEPT) == 3 and pixels._KEPT.num_bytes == 3 * 34 * 46 * 3 * 14 * 14


def test_a_processor_whose_patches_have_other_dimensions_makes_them_in_one(processings):
    processor = transformers.PaddleOCRVLImageProcessor()
    made = processor(images=[read_image(picture(1))], return_tensors="pt")["pixel_values"]
    assert made.ndim == 4 and torch.equal(pixel_values([picture(1)], processor).tensor(), made)


@pytest.mark.parametrize("settings", [{"do_normalize": False}, {"do_rescale": False}, {"image_std": [1.0, 2.0, 3.0]}])
def test_a_processor_without_the_two_parts_makes_them_in_one(processings, settings):
    processor = transformers.Qwen2VLImageProcessor(size={"shortest_edge": 3136, "longest_edge": 100_352}, **settings)
    shots = [picture(seed, (640, 480)) for seed in (1, 2)]
    made = processor(images=[read_image(shot) for shot in shots], return_tensors="pt")["pixel_values"]
    assert torch.equal(pixel_values(shots, processor).tensor(), made)
    assert pixels._processor(pixel_values(shots, processor).processor)._has_parts == ("image_std" in settings)


def test_pixels_of_a_models_own_processor_are_made_at_once(processor, caplog):
    models_processor = type("OwnImageProcessor", (type(processor),), {})(
        size={"shortest_edge": 3136, "longest_edge": 100_352}
    )
    shots = [picture(1, (640, 480))]
    pixels._tell_once.cache_clear()
    for _ in range(2):
        assert torch.equal(pixel_values(shots, models_processor), pixel_values(shots, processor).tensor())
    assert [record.message for record in caplog.records if "OwnImageProcessor is no" in record.message]
    assert caplog.text.count("OwnImageProcessor") == 1


def test_what_is_no_picture_is_refused(processor):
    with pytest.raises(ImageError, match="PNG or JPEG or WEBP"):
        pixel_values([b"no picture"], processor).tensor()
    bomb = io.BytesIO()
    Image.new("1", (9000, 9000)).save(bomb, format="PNG")
    with pytest.raises(ImageError, match="at most 33177600 pixels"):
        pixel_values([bomb.getvalue()], processor).tensor()


def test_a_process_that_only_stores_rows_imports_neither_torch_nor_transformers():
    code = "import sys, arpo_verl.engines.pixels; assert not {'torch', 'transformers', 'PIL'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
