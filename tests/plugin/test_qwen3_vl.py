"""A Qwen3-VL policy through the agent loop: patches of 16 pixels, thousandths, tool calls, its own positions."""

import json

import pytest
import torch
from PIL import Image
from support import needs_words
from support.loop_harness import FakePool, ScriptedEngine, play, recipe
from support.made_pixels import made
from support.tiny_qwen3_vl import build_qwen3_vl

from arpo_verl.agent.models.family import load_family
from arpo_verl.agent.models.messages import reply_message, screenshot_message
from arpo_verl.agent.rollout.vision import ImageGeometry, decode_screenshot
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.types import Click, Finish, Move, Point, Scroll, Size

pytestmark = needs_words
SCREEN = Size(640, 480)


def reply(thought, **arguments):
    return f"{thought}\n<tool_call>\n{json.dumps({'name': 'computer_use', 'arguments': arguments})}\n</tool_call>"


# The fake's square lies at the top left: (50, 80) thousandths of 640x480 are the pixel (32, 38).
HIT = reply("I click the square.", action="left_click", coordinate=[50, 80])
MOVE = reply("I point.", action="mouse_move", coordinate=[1000, 1000])
SCROLL = reply("I scroll.", action="scroll", pixels=-3)
DONE = reply("Done.", action="terminate", status="success")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_qwen3_vl(tmp_path_factory.mktemp("policy") / "qwen3_vl")


@pytest.fixture(scope="module")
def policy(folder):
    from verl.utils import hf_processor, hf_tokenizer

    return hf_tokenizer(str(folder)), hf_processor(str(folder))


def qwen_recipe(**agent):
    options = {"model_family": "qwen3_vl", "max_reply_tokens": 400, **agent}
    return recipe(options, prompt_length=2048, response_length=4096)


@pytest.mark.parametrize("screen", [SCREEN, Size(1920, 1080), Size(333, 777)])
def test_size_and_tokens_are_those_of_the_processor(policy, screen):
    geometry = ImageGeometry.from_processor(policy[1])
    grid = policy[1].image_processor(images=[Image.new("RGB", screen)])["image_grid_thw"][0].tolist()
    assert geometry.factor == 32
    assert geometry.image_size(screen) == Size(grid[2] * 16, grid[1] * 16)
    assert geometry.num_tokens(screen) == grid[1] * grid[2] // 4


def test_an_episode_is_the_processors_own_conversation_with_its_clicks_in_thousandths(policy):
    pool, replies = FakePool(), [MOVE, HIT, SCROLL, DONE]
    output = play(policy, ScriptedEngine(policy[0], replies), pool, qwen_recipe())
    expected = [Move(Point(639, 479)), Click(Point(32, 38)), Scroll("down", None, 3), Finish()]
    assert pool.desktops[0].actions == expected
    assert (output.reward_score, output.extra_fields["stop_reason"]) == (1.0, "finished")
    messages = load_family("qwen3_vl").opening("Click the red square.", "English", ())
    for text in replies:
        messages += [reply_message(text), screenshot_message()]
    messages.pop()
    images = [decode_screenshot(screenshot) for screenshot in output.screenshots]
    text = policy[1].apply_chat_template(messages, tokenize=False)
    whole = policy[1](text=[text], images=images, return_tensors="pt")["input_ids"][0].tolist()
    assert output.prompt_ids + output.response_ids == whole[:-1]  # but the newline after the last turn


@pytest.mark.parametrize("mark", ["", "<|vision_start|>", "<|vision_end|>"])
def test_the_rebuilt_inputs_are_what_the_model_takes_whatever_marks_a_reply_holds(policy, folder, mark):
    from transformers import Qwen3VLForConditionalGeneration

    engine = ScriptedEngine(policy[0], [HIT + mark, DONE + mark], end=not mark)
    output = play(policy, engine, None, qwen_recipe())
    input_ids = torch.tensor(output.prompt_ids + output.response_ids)
    inputs, positions = ModelInputs(*policy).compute(output.screenshots, input_ids)
    inputs = made(inputs)
    assert positions.shape == (4, len(input_ids)) and positions[0].tolist() == list(range(len(input_ids)))
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder)
    is_image = (input_ids == policy[1].image_token_id).int()
    expected, _ = model.model.get_rope_index(input_ids[None], is_image[None], inputs["image_grid_thw"])
    assert torch.equal(positions[1:], expected[:, 0])
    with torch.no_grad():
        given = model(input_ids=input_ids[None], position_ids=positions[1:, None], **inputs).logits
        own = model(input_ids=input_ids[None], mm_token_type_ids=is_image[None], **inputs).logits
    assert torch.isfinite(given).all() and torch.allclose(given, own, atol=1e-5)


def test_qwen25_reads_the_same_call_in_pixels_of_the_resized_image(policy):
    """(200, 200) of the 416x288 image that this processor makes is (308, 333) of the screen, not (128, 96)."""
    pool = FakePool()
    call = reply("I click.", action="left_click", coordinate=[200, 200])
    config = qwen_recipe(model_family="qwen25_vl")
    play(policy, ScriptedEngine(policy[0], [call, DONE]), pool, config)
    assert ImageGeometry.from_processor(policy[1]).image_size(SCREEN) == Size(416, 288)
    assert pool.desktops[0].actions[0] == Click(Point(308, 333))
