"""What the model is told, and what size it sees."""

import io
import json

import pytest
from PIL import Image

from arpo_verl.actions.grammars import GRAMMARS
from arpo_verl.errors import ConfigError, DesktopLostError
from arpo_verl.plugin.dataset import read_task
from arpo_verl.rollout.chat import ChatTokenizer
from arpo_verl.rollout.prompts import build_messages, reply_message, screenshot_message
from arpo_verl.rollout.vision import ImageGeometry, decode_screenshot
from arpo_verl.types import Size

# Arguments of the tool's actions that take no coordinate.
EXAMPLES = {
    "key": {"keys": ["ctrl", "c"]},
    "type": {"text": "a"},
    "scroll": {"pixels": -3},
    "hscroll": {"pixels": 3},
    "wait": {"time": 2},
    "terminate": {"status": "success"},
    "answer": {"text": "a"},
}


def text_of(messages):
    return "\n".join(part["text"] for message in messages for part in message["content"])


def test_the_ui_tars_prompt_holds_the_action_space_and_ends_with_the_task():
    text = text_of(build_messages("Open {the} file.", kind="ui_tars_15", language="German"))
    assert text.endswith("## User Instruction\nOpen {the} file.")
    assert "- Use German in `Thought` part." in text
    for name in "click left_double right_single drag hotkey type scroll wait finished call_user".split():
        assert f"\n{name}(" in text


def test_the_compact_prompt_is_short(tokenizer):
    messages = build_messages("Open the file.", kind="compact")
    assert len(tokenizer.encode(text_of(messages))) < 60
    assert [message["role"] for message in messages] == ["system", "user"]


@pytest.mark.parametrize(("kind", "resolution"), [("qwen25_vl", "1932x1092"), ("qwen3_vl", "1000x1000")])
def test_the_tool_prompt_names_what_the_grammar_reads_and_where_coordinates_end(kind, resolution):
    text = text_of(build_messages("Open {the} file.", kind=kind, language="German", image_size=Size(1932, 1092)))
    assert text.endswith("\nOpen {the} file.") and f"resolution is {resolution}." in text
    assert "one sentence in German" in text
    schema = json.loads(text.split("<tools>\n")[1].split("\n</tools>")[0])["function"]
    assert schema["name"] == "computer_use"
    grammar, image = GRAMMARS[kind], Size(1932, 1092)
    for name in schema["parameters"]["properties"]["action"]["enum"]:
        arguments = {"action": name, **EXAMPLES.get(name, {"coordinate": [3, 4]})}
        assert set(arguments) <= set(schema["parameters"]["properties"])
        call = json.dumps({"name": "computer_use", "arguments": arguments})
        assert len(grammar.parse(f"<tool_call>{call}</tool_call>", image, Size(1920, 1080)).actions) == 1


def test_an_unknown_prompt_is_refused():
    with pytest.raises(ConfigError, match="one of ui_tars_15, compact"):
        build_messages("x", kind="huge")


@pytest.mark.parametrize("screen", [Size(640, 480), Size(1920, 1080), Size(320, 240), Size(200, 1500), Size(28, 28)])
def test_size_and_tokens_are_those_of_the_processor(policy, screen):
    processor = policy[1]
    geometry = ImageGeometry.from_processor(processor)
    grid = processor.image_processor(images=[Image.new("RGB", screen)])["image_grid_thw"][0].tolist()
    assert geometry.image_size(screen) == Size(grid[2] * 14, grid[1] * 14)
    assert geometry.num_tokens(screen) == grid[1] * grid[2] // 4


def test_the_embedded_screen_is_seen_as_told_in_the_recipe(policy):
    geometry = ImageGeometry.from_processor(policy[1])
    assert geometry.image_size(Size(640, 480)) == Size(364, 252)
    assert geometry.num_tokens(Size(640, 480)) == 117


@pytest.mark.parametrize("kwargs", [{"min_pixels": 3136, "max_pixels": 31360}, {"max_pixels": 31360}, {}])
def test_processor_kwargs_count_as_the_processor_counts_them(policy, kwargs):
    processor = policy[1]
    screen = Size(640, 480)
    grid = processor(text=["<|image_pad|>"], images=[Image.new("RGB", screen)], **kwargs)["image_grid_thw"][0].tolist()
    expected = grid[1] * grid[2] // 4
    assert ImageGeometry.from_processor(processor, kwargs).num_tokens(screen) == expected


def test_another_family_of_models_is_refused(policy):
    with pytest.raises(ConfigError, match="must be a Qwen-VL one"):
        ImageGeometry.from_processor(object())


def test_a_tokenizer_without_vision_tokens_is_refused(policy):
    class Plain:
        unk_token_id = 0

        def convert_tokens_to_ids(self, token):
            return 5 if token == "<|im_end|>" else 0

    with pytest.raises(ConfigError, match=r"\|image_pad\|"):
        ChatTokenizer.from_processor(Plain(), policy[1], None)


def test_an_image_token_in_an_instruction_is_refused(policy):
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    tokenizer, processor = policy
    builder = create_continuous_token_builder(tokenizer, hf_model_type="qwen2_5_vl", processor=processor)
    chat = ChatTokenizer.from_processor(tokenizer, processor, builder)
    with pytest.raises(ConfigError, match="one image placeholder, got 2"):
        chat.prompt(build_messages("See <|image_pad|>", kind="compact"), Size(640, 480))


def test_messages_have_one_shape():
    assert screenshot_message() == {"role": "user", "content": [{"type": "image"}]}
    assert reply_message("a") == {"role": "assistant", "content": [{"type": "text", "text": "a"}]}


def test_screenshots_decode_from_png_and_jpeg_to_rgb():
    for kind, mode in (("PNG", "RGBA"), ("PNG", "L"), ("JPEG", "RGB")):
        buffer = io.BytesIO()
        Image.new(mode, (30, 20)).save(buffer, kind)
        image = decode_screenshot(buffer.getvalue())
        assert (image.mode, image.size) == ("RGB", (30, 20))
        with pytest.raises(DesktopLostError):
            decode_screenshot(buffer.getvalue()[: len(buffer.getvalue()) // 2])


def test_the_spec_of_a_row_may_be_a_mapping_or_json():
    extra_info = {"task_id": "a", "instruction": "b"}
    for spec in ({"id": "a"}, '{"id": "a"}'):
        task = read_task({"extra_info": {**extra_info, "spec": spec}})
        assert (task.task_id, task.instruction, task.spec) == ("a", "b", {"id": "a"})
