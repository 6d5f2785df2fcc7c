"""What size the model sees a screenshot at."""

import io

import pytest
from PIL import Image

from arpo_verl.agent.rollout.vision import ImageGeometry, decode_screenshot
from arpo_verl.errors import ConfigError, DesktopLostError
from arpo_verl.types import Size


@pytest.mark.parametrize("screen", [Size(640, 480), Size(1920, 1080), Size(320, 240), Size(200, 1500), Size(28, 28)])
def test_size_and_tokens_are_those_of_the_processor(policy, screen):
    processor = policy[1]
    geometry = ImageGeometry.from_processor(processor)
    grid = processor.image_processor(images=[Image.new("RGB", screen)])["image_grid_thw"][0].tolist()
    assert geometry.image_size(screen) == Size(grid[2] * 14, grid[1] * 14)
    assert geometry.num_tokens(screen) == grid[1] * grid[2] // 4


@pytest.mark.parametrize("kwargs", [{"min_pixels": 3136, "max_pixels": 31360}, {}])
def test_processor_kwargs_count_as_the_processor_counts_them(policy, kwargs):
    processor = policy[1]
    screen = Size(640, 480)
    grid = processor(text=["<|image_pad|>"], images=[Image.new("RGB", screen)], **kwargs)["image_grid_thw"][0].tolist()
    expected = grid[1] * grid[2] // 4
    assert ImageGeometry.from_processor(processor, kwargs).num_tokens(screen) == expected


@pytest.mark.parametrize("limit", ["min_pixels", "max_pixels"])
def test_one_limit_alone_which_vllm_takes_and_training_does_not_is_refused(policy, limit):
    # A prompt had 5,382 visual tokens here, and 240 in the engine.
    with pytest.raises(ConfigError, match="both min_pixels and max_pixels or neither"):
        ImageGeometry.from_processor(policy[1], {limit: 31360})


def test_another_family_of_models_is_refused():
    with pytest.raises(ConfigError, match="must be a Qwen-VL one"):
        ImageGeometry.from_processor(object())


def test_screenshots_decode_from_png_and_jpeg_to_rgb():
    for kind, mode in (("PNG", "RGBA"), ("PNG", "L"), ("JPEG", "RGB")):
        buffer = io.BytesIO()
        Image.new(mode, (30, 20)).save(buffer, kind)
        image = decode_screenshot(buffer.getvalue())
        assert (image.mode, image.size) == ("RGB", (30, 20))
        with pytest.raises(DesktopLostError):
            decode_screenshot(buffer.getvalue()[: len(buffer.getvalue()) // 2])
