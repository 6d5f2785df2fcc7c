"""What a run needs: four sums against worked examples, published figures and Hugging Face's own models."""

import dataclasses

import pytest

from arpo_verl.engines.footprint import (
    GB,
    KNOWN_MODELS,
    Model,
    NodeCapacity,
    RunSizes,
    activation_bytes,
    checkpoint_bytes,
    disk_space,
    estimate,
    host_memory,
    images_bytes,
    longest_sequence,
    pixel_bytes,
    row_tokens,
    screenshot_tokens,
    training_state_bytes,
    update_memory,
)
from arpo_verl.engines.pixels import KEPT_BYTES
from arpo_verl.types import Size

UI_TARS = KNOWN_MODELS["ByteDance-Seed/UI-TARS-1.5-7B"]
# The paper's run: 16 tasks x 8 rollouts on 2 nodes x 8 GPUs.
FULL = RunSizes(
    model_name="UI-TARS",
    model=UI_TARS,
    image=Size(1932, 1092),
    screen=Size(1920, 1080),
    max_screenshots=15,
    max_replies=15,
    rows_per_episode=1,
    max_reply_tokens=1024,
    instruction_tokens=400,
    max_sequence_tokens=65536,
    rollouts_per_step=128,
    rollouts_fetched=128,
    rollouts_in_queue=128,
    sends_pixels=False,
    saves_queue=False,
    num_nodes=2,
    num_rollout_nodes=0,
    gpus_per_node=8,
    on_gpus=True,
    sequence_parallel_size=4,
    micro_batch_size=1,
    host_bytes_a_parameter=12,
    image_cache_bytes=64 * 2**30,
    num_desktops=128,
    desktop_bytes=5 * GB,
    successes_stored=256,
    checkpoints_kept=2,
)
ENOUGH = NodeCapacity(memory_bytes=2000 * GB, gpu_bytes=80 * GB, disk_bytes=1000 * GB)
# Windows of 5 screenshots over 50 steps: 2 tasks x 8 on one node.
WINDOW = dataclasses.replace(
    FULL,
    max_screenshots=5,
    max_replies=50,
    rows_per_episode=46,
    max_reply_tokens=512,
    max_sequence_tokens=16384,
    rollouts_per_step=16,
    rollouts_fetched=16,
    rollouts_in_queue=16,
    num_nodes=1,
    sequence_parallel_size=1,
    num_desktops=16,
)
PATCHES = 138 * 78
IMAGE = PATCHES * 3 * 2 * 14 * 14 * 4  # 3 colours, 2 times, 14 x 14 pixels, float32
SENT = 1920 * 1080 // 2


def about(value: float, share: float = 0.02):
    return pytest.approx(value, rel=share)


def changed(run=FULL, **fields):
    return dataclasses.replace(run, **fields)


def part(parts, begins):
    (found,) = [amount for name, amount in parts.items() if name.startswith(begins)]
    return found


def test_a_1080p_screenshot_and_its_episode():
    assert screenshot_tokens(UI_TARS, FULL.image) == 69 * 39 == 2691
    assert pixel_bytes(UI_TARS, FULL.image) == IMAGE
    assert longest_sequence(FULL) == sum(row_tokens(FULL).values()) == 400 + 15 * (2691 + 16) + 15 * 1024
    # Each screenshot is in its rows, and in the column that the store takes it from.
    assert images_bytes(FULL) == (15 + 15) * SENT and images_bytes(WINDOW) == (46 * 5 + 50) * SENT
    assert images_bytes(changed(sends_pixels=True)) == 15 * IMAGE + 15 * SENT, "with veRL's own manager"


@pytest.mark.parametrize(
    ("run", "begins", "expected"),
    [
        # Half of the queue. 16 GPUs in groups of 4 that share a sequence are four groups for 128 episodes.
        (FULL, "screenshots on their way: 320 episodes x 31 MB", (64 + 8 * 32) * 30 * SENT),
        (changed(sequence_parallel_size=2), "screenshots on their way", (64 + 8 * 16) * 30 * SENT),
        # Two copies of a micro-batch, and each screenshot of a process's rows resized, a byte a value.
        (FULL, "pixel values made: 8 processes", 8 * (2 * 15 * IMAGE + 32 * 15 * IMAGE // 8)),
        (changed(micro_batch_size=2), "pixel values made", 8 * (4 * 15 * IMAGE + 32 * 15 * IMAGE // 8)),
        (changed(rollouts_fetched=1280), "pixel values made", 8 * (2 * 15 * IMAGE + KEPT_BYTES)),
        (WINDOW, "pixel values made", 8 * (2 * 5 * IMAGE + 2 * 46 * 5 * IMAGE // 8)),
        (FULL, "weights, optimizer: 12 bytes x parameters / 2", 6 * UI_TARS.num_parameters),
        (FULL, "vLLM's caches", 64 * 2**30),
        (FULL, "desktops: 64 x 5.0 GB", 64 * 5 * GB),
        (changed(num_rollout_nodes=2), "desktops: 32 x 5.0 GB", 32 * 5 * GB),
        (FULL, "successes: 256 x 15 screenshots", 256 * 15 * SENT),
    ],
)
def test_host_memory_is_a_sum_of_counts_and_units(run, begins, expected):
    assert part(host_memory(run), begins) == expected


def test_gpu_memory_is_a_sum_of_counts_and_units():
    parts, tokens, per_patch = update_memory(FULL), -(-56365 // 4), 2 * (32 * 1280 + 8 * 1280 + 4 * 3420)
    assert longest_sequence(FULL) == 56365
    assert part(parts, "weights, gradients, optimizer: 16 bytes x parameters / 16") == UI_TARS.num_parameters
    assert part(parts, f"activations of {tokens:,} tokens") == tokens * 2 * (28 * 3584 + 8 * 3584 + 4 * 18944)
    assert part(parts, f"logits: 4 bytes x {tokens:,} x 152,064") == 4 * tokens * 152064
    # The GPUs of a sequence share its screenshots: four of fifteen; the fourth has three.
    assert part(parts, f"activations of {4 * PATCHES:,} patches") == 4 * PATCHES * per_patch
    whole = update_memory(changed(sequence_parallel_size=1))
    assert part(whole, f"activations of {15 * PATCHES:,} patches") == 15 * PATCHES * per_patch


def test_the_last_of_several_rows_shows_one_screenshot_and_has_room_for_common_replies():
    assert sum(row_tokens(WINDOW).values()) == 400 + 2691 + 16 + 49 * 105 + 512
    assert estimate(WINDOW, ENOUGH).problems == (), "their oldest screenshots give way"
    (problem,) = estimate(changed(WINDOW, max_replies=150), ENOUGH).problems
    assert problem.what.startswith("tokens, 19,2") and "gui_agent.max_steps" in problem.remedy


def test_the_brief_form_has_a_line_for_each_sum_and_what_does_not_fit():
    report = estimate(FULL, changed(ENOUGH, disk_bytes=100 * GB))
    names = ["model", "a step", "tokens", "host memory", "GPU memory", "disk"]
    assert [line[:13].strip() for line in report.brief[:6]] == names
    together = [line.split("together")[1].strip() for line in report.lines if "together" in line]
    assert [line[13:] for line in report.brief[2:6]] == [f"{total} at most" for total in together]
    assert "128 episodes" in report.brief[1] and together[3] == "203 GB of 100 GB"
    assert report.brief[6:] == ("does not fit: disk, 203 GB of 100 GB",)


def test_an_asynchronous_run_has_its_queue_in_its_checkpoints():
    assert checkpoint_bytes(FULL) == about(99.5 * GB)
    assert part(disk_space(FULL), "TransferQueue") == 0
    ahead = changed(saves_queue=True, rollouts_in_queue=256)
    assert part(disk_space(ahead), "TransferQueue: 3 x 8.0 GB") == 3 * 256 * images_bytes(FULL)


def test_the_oldest_weights_go_before_new_ones_are_written_but_not_the_only_ones(tmp_path):
    from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

    for kept, most in ((1, 2), (2, 2), (3, 3)):
        manager = BaseCheckpointManager.__new__(BaseCheckpointManager)
        manager.previous_saved_paths = []
        held = []
        for step in range(5):
            manager.ensure_checkpoint_capacity(kept)
            folder = tmp_path / f"{kept}-{step}"
            folder.mkdir()
            held.append(len(list(tmp_path.glob(f"{kept}-*"))))
            manager.register_checkpoint(str(folder), kept)
        weights = part(disk_space(changed(checkpoints_kept=kept)), "weights, optimizer")
        assert max(held) == most and weights == most * checkpoint_bytes(FULL)
    assert part(disk_space(changed(checkpoints_kept=None)), "weights, optimizer: 1 x") == checkpoint_bytes(FULL)


class TestPublishedFigures:
    """Computed here, printed there: within 20%, most of them within 2%."""

    def test_training_state_of_zero(self):
        """ZeRO (arXiv 1910.02054), figure 1: 7.5 B parameters, 120 GB; 1.9 GB each of 64 GPUs in stage 3."""
        assert training_state_bytes(7_500_000_000) == 120 * GB
        assert training_state_bytes(7_500_000_000) / 64 == about(1.9 * GB)

    def test_activations_of_a_layer(self):
        """Korthikanti et al. (arXiv 2205.05198), equation 2: 34 bytes a token and hidden unit beside the scores."""
        tokens, hidden = 2048, 12288
        assert activation_bytes(tokens, 0, hidden, 4 * hidden, mlp_tensors=2) == about(34 * tokens * hidden, 0.06)

    def test_what_the_image_cache_took_in_vllm(self):
        """Measured in a vLLM engine: 25.3 MB for a 1080p screenshot; so 4 GiB hold 169."""
        image = pixel_bytes(UI_TARS, FULL.image) // 2
        assert image == about(25.3e6, 0.001) and 4 * 2**30 // image == 169


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_the_known_models_are_what_hugging_face_builds(name):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    known = KNOWN_MODELS[name]
    text = {
        "hidden_size": known.hidden_size,
        "num_hidden_layers": known.num_layers,
        "num_attention_heads": known.num_heads,
        "num_key_value_heads": known.num_kv_heads,
        "head_dim": known.head_dim,
        "intermediate_size": known.intermediate_size,
        "vocab_size": known.vocab_size,
    }
    vision = {
        "hidden_size": known.vision_hidden_size,
        "depth": known.vision_layers,
        "intermediate_size": known.vision_intermediate_size,
        "out_hidden_size": known.hidden_size,
        "num_heads": 16,
        "patch_size": known.patch_size,
        "spatial_merge_size": known.merge_size,
    }
    if "Qwen3" in name:
        config_class, model_class = transformers.Qwen3VLConfig, transformers.Qwen3VLForConditionalGeneration
        layers = [5, 11, 17] if "2B" in name else [8, 16, 24]
        vision |= {"deepstack_visual_indexes": layers, "num_position_embeddings": 2304}
    else:
        config_class, model_class = transformers.Qwen2_5_VLConfig, transformers.Qwen2_5_VLForConditionalGeneration
    config = config_class(text_config=text, vision_config=vision, tie_word_embeddings=known.tied_embeddings)
    with torch.device("meta"):
        model = model_class(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == known.num_parameters
    assert Model.of_config(config.to_dict(), count) == known


def test_an_older_config_has_the_text_models_fields_at_the_top():
    config = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 32,
        "tie_word_embeddings": True,
        "vision_config": {
            "hidden_size": 4,
            "depth": 1,
            "intermediate_size": 8,
            "patch_size": 14,
            "spatial_merge_size": 2,
        },
    }
    model = Model.of_config(config, 1)
    assert (model.head_dim, model.num_kv_heads, model.tied_embeddings, model.patch_size) == (2, 2, True, 14)
    del config["vision_config"]
    with pytest.raises(KeyError, match="vision_config"):
        Model.of_config(config, 1)


def test_the_sizes_that_split_the_heads():
    assert UI_TARS.sequence_parallel_sizes == [1, 2, 4, 28]
    assert KNOWN_MODELS["Qwen/Qwen3-VL-8B-Instruct"].sequence_parallel_sizes == [1, 2, 4, 8, 16, 32]


def test_a_run_that_fits_has_no_problem_and_one_on_a_cpu_no_gpu_part():
    assert estimate(FULL, ENOUGH).problems == ()
    assert estimate(FULL, NodeCapacity()).problems == (), "nothing is known of the machine"
    assert "GPU memory" not in str(estimate(changed(on_gpus=False), ENOUGH))


@pytest.mark.parametrize(
    ("run", "machine", "says", "option"),
    [
        ({"max_reply_tokens": 4096}, {}, "tokens, 102,445 of 65,536", "data.max_response_length"),
        ({}, {"memory_bytes": 400 * GB}, "host memory, 492 GB of 400 GB", "data.train_batch_size"),
        ({}, {"gpu_bytes": 30 * GB}, "GPU memory, 33 GB of 30 GB", "parallel_size (this model: 1, 2, 4, 28)"),
        ({}, {"disk_bytes": 190 * GB}, "disk, 203 GB of 190 GB", "max_actor_ckpt_to_keep"),
    ],
)
def test_what_does_not_fit_is_told_with_the_option_to_change(run, machine, says, option):
    report = estimate(changed(**run), changed(ENOUGH, **machine))
    (problem,) = report.problems
    assert says == problem.what and option in problem.remedy and f"does not fit: {says}\n  -> " in str(report)
