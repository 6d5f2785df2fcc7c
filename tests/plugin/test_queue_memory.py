"""What `arpo_verl/engines/footprint.py` counts of images: one copy where they wait, one in each process with them."""

import time

import pytest
import ray
import torch
from support.made_pixels import made
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorStack

from arpo_verl.engines.footprint import pixel_bytes, screenshot_tokens
from arpo_verl.plugin.recipe.footprint import model_shape
from arpo_verl.types import Size

ROWS, ROW_BYTES = 8, 32 * 2**20
LEFT = 0.2
"""Share of the rows that may stay."""


@ray.remote
def fetch_twice(keys: list[str]) -> list[tuple[float, float]]:
    """Resident memory beside what there was, as a share of the rows' bytes: with a fetch in hand, and without."""
    import psutil
    import transfer_queue as tq

    tq.init()
    process, shares = psutil.Process(), []
    before = process.memory_info().rss

    def share() -> float:
        return (process.memory_info().rss - before) / (ROWS * ROW_BYTES)

    for _ in range(2):
        rows = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["multi_modal_inputs"])
        held = share()
        del rows
        # The thread that fetched may have to come to its next line before it lets go.
        deadline = time.monotonic() + 60
        while (left := share()) > LEFT and time.monotonic() < deadline:
            time.sleep(0.05)
        shares.append((held, left))
    return shares


@pytest.mark.release
def test_a_process_holds_one_copy_of_what_it_fetched_and_none_afterwards(empty_queue):
    keys = [f"row-{number}" for number in range(ROWS)]
    for key in keys:
        rows = NonTensorStack({"pixel_values": torch.ones(ROW_BYTES // 4)})
        fields = TensorDict({"multi_modal_inputs": rows}, batch_size=1)
        empty_queue.kv_batch_put(keys=[key], partition_id="train", fields=fields, tags=[{}])
    for held, left in ray.get(fetch_twice.remote(keys)):
        assert 0.8 < held < 1.2 and left < LEFT


def test_a_rows_pixel_values_and_visual_tokens_are_as_many_as_estimated(empty_queue, rollouts, model_path):
    """Rows as veRL's rollout worker puts them: two screenshots of 640 x 480, which the processor makes 364 x 252."""
    model, image = model_shape(model_path), Size(364, 252)
    rollouts.put("p", [rollouts.output("task", 1.0, seed=1, turns=2), rollouts.output("task", 0.0, seed=2, turns=1)])
    fields = ["input_ids", "multi_modal_inputs"]
    rows = empty_queue.kv_batch_get(keys=["p_0_0", "p_1_0"], partition_id="train", select_fields=fields)
    pad = rollouts.worker.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for screenshots, ids, inputs in zip((2, 1), rows["input_ids"].unbind(), rows["multi_modal_inputs"], strict=True):
        assert made(inputs)["pixel_values"].nbytes == screenshots * pixel_bytes(model, image)
        assert ids.tolist().count(pad) == screenshots * screenshot_tokens(model, image)
