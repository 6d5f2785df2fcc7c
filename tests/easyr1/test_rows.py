"""A step's rows as EasyR1's batch, and the traps of its workers."""

from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from support.easyr1 import require_easyr1
from support.replay_trajectories import stored

require_easyr1()

from verl.utils.dataset import process_image  # noqa: E402
from verl.workers.fsdp_workers import FSDPWorker  # noqa: E402

from arpo_verl.agent.models.messages import screenshot_message  # noqa: E402
from arpo_verl.easyr1.images import bounded_geometry, model_file  # noqa: E402
from arpo_verl.easyr1.rows import Row, make_batch  # noqa: E402
from arpo_verl.errors import ConfigError, ReplayError  # noqa: E402
from arpo_verl.lib.images import image_size, read_image  # noqa: E402
from arpo_verl.types import Size  # noqa: E402

SCREEN = Size(640, 480)


@pytest.fixture
def row(chat, screenshot):
    """An episode of one reply between two screenshots of these colours, and a last reply."""

    def make(*colours, reward=1.0):
        prompt = chat.prompt([screenshot_message()], SCREEN)
        shown = chat.next_screenshot(chat.end_id, SCREEN)
        mask = [1, 1, *[0] * len(shown), 1]
        files = [model_file(screenshot(colour), chat.geometry) for colour in colours]
        return Row(prompt, [20, chat.end_id, *shown, chat.end_id], mask, reward, files)

    return make


@pytest.fixture
def batch(loaded, chat):
    return lambda rows, prompts=300, responses=400: make_batch(rows, loaded[1], chat, prompts, responses, fps=2.0)


def processed(loaded, batch):
    worker = SimpleNamespace(_cache={}, processor=loaded[1])
    FSDPWorker._process_multi_modal_inputs(worker, batch)
    return [inputs.get("pixel_values") for inputs in batch.non_tensor_batch["multi_modal_inputs"]]


def test_each_rollout_of_a_group_trains_on_its_own_screenshots(loaded, row, batch):
    rows = {"g_0_0": row("red", "red"), "g_1_0": row("blue", "blue")}
    red, blue = processed(loaded, batch(rows))
    assert not torch.equal(red, blue)
    shared = batch(rows)
    shared.non_tensor_batch["uid"][:] = "g"  # as stock EasyR1 labels a group
    assert torch.equal(*processed(loaded, shared))


def test_a_row_has_its_tokens_padding_scores_and_easyr1s_positions(loaded, chat, row, batch):
    one = row("red", "blue", reward=0.5)
    data = batch({"g_0_0": one}).batch
    tokens, left = [*one.prompt_ids, *one.response_ids], 300 - len(one.prompt_ids)
    assert data["input_ids"].shape == (1, 700) and data["prompts"].shape == (1, 300)
    own = slice(left, left + len(tokens))
    assert data["input_ids"][0, own].tolist() == tokens
    assert data["attention_mask"][0].nonzero()[:, 0].tolist() == list(range(own.start, own.stop))
    assert data["response_mask"].sum() == 3 and data["response_mask"].shape == (1, 400)
    assert data["token_level_scores"][0].nonzero().tolist() == [[len(one.response_ids) - 1]]
    positions = data["position_ids"][0, :, own]
    assert positions[0].tolist() == list(range(len(tokens)))
    image = [place for place, id in enumerate(tokens) if id == chat.image_id]
    size = chat.geometry.image_size(SCREEN)
    width = size.width // 28
    first = image[: width * (size.height // 28)]
    assert positions[1, first].unique().numel() == 1  # one moment,
    assert (positions[3, first[:width]] - positions[3, first[0]]).tolist() == list(range(width))  # a row of patches


def test_a_fault_is_a_row_that_teaches_nothing_and_shows_nothing(loaded, chat, row, batch):
    made = batch({"g_0_0": row("red", "red"), "g_1_0": Row.of_fault(chat)})
    assert made.batch["response_mask"][1].sum() == 0 and made.batch["token_level_scores"][1].sum() == 0
    assert made.batch["attention_mask"][1].sum() == 2
    assert processed(loaded, made)[1] is None


@pytest.mark.parametrize(
    ("colours", "responses", "words"),
    [(("red", "red"), 5, "at most 300 and 5 tokens"), (("red",), 400, "visual tokens")],
)
def test_too_long_a_row_or_one_whose_screenshots_do_not_fit_is_refused(row, batch, colours, responses, words):
    with pytest.raises(ReplayError, match=words):
        batch({"g_0_0": row(*colours)}, responses=responses)


def test_a_past_success_is_rebuilt_from_its_screenshots(loaded, chat, screenshot, row, batch):
    one = row("red", "blue")
    success = stored(
        prompt_ids=one.prompt_ids,
        response_ids=one.response_ids,
        response_mask=one.response_mask,
        rollout_log_probs=None,
        screenshots=[screenshot("red"), screenshot("blue")],
    )
    again, first = batch({"k_0_0": Row.of_trajectory(success, chat)}), batch({"k_0_0": one})
    assert all(torch.equal(again.batch[name], first.batch[name]) for name in first.batch.keys())
    assert torch.equal(processed(loaded, again)[0], processed(loaded, first)[0])


@pytest.mark.parametrize("size", [(640, 480), (1920, 1080), (333, 777)])
def test_a_screenshot_goes_in_the_size_of_its_tokens_within_easyr1s_limits(loaded, screenshot, size):
    geometry = bounded_geometry(loaded[1], None, 60_000)
    file = model_file(screenshot(size=size), geometry)
    assert image_size(file) == geometry.image_size(Size(*size)) and file == model_file(file, geometry)
    untouched = process_image(file, None, None)
    assert untouched.size == tuple(image_size(file))
    grid = loaded[1].image_processor(images=[untouched], return_tensors="pt")["image_grid_thw"]
    assert int(grid.prod()) // 4 == geometry.num_tokens(Size(*size))
    stock = process_image(screenshot(size=size), None, 60_000)
    assert any(side % geometry.factor for side in stock.size)  # what EasyR1 itself would have made of it


def test_a_file_keeps_its_pixels_and_limits_that_exclude_each_other_are_refused(loaded, screenshot):
    with pytest.raises(ConfigError, match="data.min_pixels, data.max_pixels must be limits that overlap"):
        bounded_geometry(loaded[1], 262144, 4194304)
    geometry = bounded_geometry(loaded[1], None, None)
    image = read_image(model_file(screenshot("red"), geometry))
    assert isinstance(image, Image.Image) and image.getpixel((5, 5)) == (255, 0, 0)
