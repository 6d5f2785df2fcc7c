"""What the store gives back makes the very inputs that the rollout's screenshots made, at UI-TARS-1.5's limits."""

import io

import numpy as np
import torch
from PIL import Image, ImageDraw
from support.made_pixels import made

from arpo_verl.agent.rollout.vision import decode_screenshot
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.plugin.rows import rebuild_rows
from arpo_verl.replay.store.persistence import Fingerprint, load_store, save_store
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.replay.trajectory import StoredTrajectory

MAX_PIXELS = 2_116_800


def full_hd(seed):
    """Windows with text and a photograph's noise, as PNG."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (1920, 1080), tuple(rng.integers(0, 255, 3)))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = int(rng.integers(0, 1500)), int(rng.integers(0, 800))
        draw.rectangle((x, y, x + 400, y + 250), fill="white", outline="black")
        for line in range(15):
            draw.text((x + 8, y + 8 + 15 * line), f"line {line} of window {rng.integers(999)}", fill="black")
    image.paste(Image.fromarray(rng.integers(0, 255, (200, 300, 3), dtype=np.uint8)), (100, 100))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def test_saved_and_loaded_screenshots_give_the_same_tensors(model_path, rollouts, tmp_path):
    processor = rollouts.worker.processor
    limits = {"min_pixels": 256 * 28 * 28, "max_pixels": MAX_PIXELS}
    inputs = ModelInputs(rollouts.worker.tokenizer, processor, limits)
    shots = [full_hd(1), full_hd(2), full_hd(1)]
    images = [decode_screenshot(shot) for shot in shots]
    text = "<|im_start|>user\n" + "<|vision_start|><|image_pad|><|vision_end|>" * 3
    original = processor(text=[text], images=images, return_tensors="pt", **limits)
    ids = original["input_ids"][0].tolist()
    assert original["image_grid_thw"].tolist() == [[1, 78, 138]] * 3  # 1932x1092
    positions, _ = processor.get_rope_index(
        input_ids=original["input_ids"],
        mm_token_type_ids=(original["input_ids"] == processor.image_token_id).int(),
        image_grid_thw=original["image_grid_thw"],
    )
    store = SuccessStore(1)
    store.add(
        StoredTrajectory(
            "t", 1, 1.0, 1.0, ids[:5], ids[5:], [0] * len(ids[5:]), None, shots, mm_processor_kwargs=limits
        )
    )
    save_store(store, tmp_path, Fingerprint("t", "p", "q"))
    (trajectory,) = load_store(tmp_path, None).trajectories()
    (fields,) = rebuild_rows(trajectory, inputs)
    rebuilt = made(fields["multi_modal_inputs"])
    assert torch.equal(rebuilt["pixel_values"], original["pixel_values"])
    assert torch.equal(rebuilt["image_grid_thw"], original["image_grid_thw"])
    assert torch.equal(fields["position_ids"][1:], positions[:, 0])
    assert fields["position_ids"][0].tolist() == list(range(len(ids)))
