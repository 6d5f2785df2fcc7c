"""The policy made here loads the way the trainer loads it, and reads and writes the action grammar."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from PIL import Image
from policies.architecture import PolicySize
from policies.build import build_policy

from arpo_verl.errors import ConfigError

pytestmark = pytest.mark.study

REPLY = "Thought: I click the button.\nAction: click(start_box='<|box_start|>(312,101)<|box_end|>')"


@pytest.fixture(scope="module")
def policy_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_policy(tmp_path_factory.mktemp("policy") / "model", seed=3)


@pytest.fixture(scope="module")
def tokenizer(policy_dir: Path):
    from verl.utils.tokenizer import hf_tokenizer

    return hf_tokenizer(str(policy_dir))


@pytest.fixture(scope="module")
def processor(policy_dir: Path):
    from verl.utils.tokenizer import hf_processor

    return hf_processor(str(policy_dir))


@pytest.fixture
def screenshot() -> Image.Image:
    return Image.new("RGB", (640, 480), (10, 90, 200))


def messages(screenshot: Image.Image) -> list[dict]:
    text = {"type": "text", "text": "Close the window."}
    return [
        {"role": "system", "content": "You are a GUI agent."},
        {"role": "user", "content": [text, {"type": "image", "image": screenshot}]},
    ]


def file_hashes(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def test_verl_loads_tokenizer_and_processor(tokenizer, processor) -> None:
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert type(processor).__name__ == "Qwen2_5_VLProcessor"
    assert hasattr(processor, "get_rope_index")


def test_auto_classes_load_the_model_of_one_to_three_million_parameters(policy_dir: Path) -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(policy_dir)
    model = AutoModelForImageTextToText.from_pretrained(policy_dir)
    assert config.model_type == "qwen2_5_vl" and config.tie_word_embeddings
    assert 1_000_000 <= sum(p.numel() for p in model.parameters()) <= 3_000_000
    assert model.generation_config.eos_token_id == [config.text_config.eos_token_id, config.text_config.pad_token_id]


def test_same_seed_gives_same_files_and_another_seed_other_weights(policy_dir: Path, tmp_path: Path) -> None:
    again, other = build_policy(tmp_path / "again", seed=3), build_policy(tmp_path / "other", seed=4)
    assert file_hashes(again) == file_hashes(policy_dir)
    assert file_hashes(other)["model.safetensors"] != file_hashes(policy_dir)["model.safetensors"]
    assert file_hashes(other)["tokenizer.json"] == file_hashes(policy_dir)["tokenizer.json"]


@pytest.mark.parametrize("number", [0, 7, 28, 99, 100, 105, 252, 312, 363, 511])
def test_coordinate_is_one_token(tokenizer, number: int) -> None:
    assert len(tokenizer.encode(str(number), add_special_tokens=False)) == 1


@pytest.mark.parametrize(
    "text", [REPLY, "Action: type(content='naïve – 漢字 1234\\n')", "Thought: x\n\n\tAction: hotkey(key='ctrl s')", ""]
)
def test_text_survives_tokenization(tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_embedded_screenshot_becomes_117_visual_tokens(processor, screenshot: Image.Image) -> None:
    text = processor.apply_chat_template(messages(screenshot), tokenize=False, add_generation_prompt=True)
    inputs = processor(text=[text], images=[screenshot], return_tensors="pt")
    assert inputs["image_grid_thw"].tolist() == [[1, 18, 26]]
    assert (inputs["input_ids"] == processor.image_token_id).sum() == 117


def test_turn_by_turn_tokens_equal_the_whole_conversation(tokenizer, processor, screenshot: Image.Image) -> None:
    from verl.utils.tokenizer.continuous_token import QwenVLContinuousTokenBuilder
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    builder = create_continuous_token_builder(tokenizer, processor=processor, hf_model_type="qwen2_5_vl")
    assert type(builder) is QwenVLContinuousTokenBuilder
    prompt = messages(screenshot)
    replied = [*prompt, {"role": "assistant", "content": REPLY}]
    shown = [*replied, {"role": "user", "content": [{"type": "image", "image": screenshot}]}]
    tokens = builder.build_initial_tokens(prompt, images=[screenshot])
    reply_ids = [*tokenizer.encode(REPLY, add_special_tokens=False), tokenizer.eos_token_id]
    tokens = builder.merge_assistant_tokens(tokens, reply_ids).token_ids
    merged = builder.merge_context_tokens(replied, shown, tokens)
    whole = processor.apply_chat_template(shown, tokenize=False, add_generation_prompt=True)
    assert merged.token_ids == list(processor(text=[whole], images=[screenshot] * 2)["input_ids"][0])
    assert merged.inserted_token_ids == tokenizer.encode("\n")


def test_the_processors_shared_defaults_are_left_alone(tmp_path: Path) -> None:
    from transformers import Qwen2VLImageProcessor

    before = dict(Qwen2VLImageProcessor.size)
    build_policy(tmp_path / "model", seed=3)
    assert Qwen2VLImageProcessor.size == before


def test_size_whose_heads_cannot_rotate_is_refused() -> None:
    for name in ("hidden_size", "vision_hidden_size"):
        with pytest.raises(ConfigError, match=f"^{name} must be a multiple of 4 x 4 heads, got 130"):
            PolicySize(**{name: 130})
