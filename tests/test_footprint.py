"""What a run will take: the arithmetic against published figures, worked examples and Hugging Face's own models."""

import dataclasses

import pytest

from arpo_verl.footprint import (
    BF16,
    GB,
    KNOWN_MODELS,
    Model,
    NodeCapacity,
    RunSizes,
    VllmSettings,
    checkpoint_bytes,
    estimate,
    host_memory,
    images_bytes,
    kept_checkpoints_bytes,
    kv_bytes_per_token,
    kv_cache_tokens,
    layer_activation_bytes,
    longest_sequence,
    made_bytes,
    pixel_bytes,
    reference_memory,
    reply_tokens_that_fit,
    row_bytes,
    rows_per_rank,
    screenshot_tokens,
    training_state_bytes,
    trajectory_bytes,
    update_memory,
)
from arpo_verl.pixels import KEPT_BYTES
from arpo_verl.types import Size

UI_TARS = KNOWN_MODELS["ByteDance-Seed/UI-TARS-1.5-7B"]
ENGINE = VllmSettings(
    tensor_parallel_size=2,
    gpu_memory_utilization=0.6,
    max_num_batched_tokens=16384,
    max_model_len=65536,
    image_cache_bytes=16 * 2**30,
    num_gpus=16,
    gpus_of_training_node=8,
)
# The paper's run: 16 tasks x 8 rollouts on 2 nodes x 8 GPUs.
FULL = RunSizes(
    recipe="full",
    model_name="UI-TARS",
    model=UI_TARS,
    image=Size(1932, 1092),
    screen=Size(1920, 1080),
    carries_pixels=False,
    max_screenshots=15,
    max_replies=15,
    rows_per_episode=1,
    max_reply_tokens=1024,
    instruction_tokens=400,
    max_sequence_tokens=65536,
    tasks_per_step=16,
    rollouts_per_task=8,
    tasks_per_update=8,
    tasks_per_fetch=16,
    batches_in_queue=1,
    episodes_validated=32,
    is_async=False,
    num_nodes=2,
    num_rollout_nodes=0,
    gpus_per_node=8,
    on_gpus=True,
    sequence_parallel_size=4,
    micro_batch_size=1,
    offloads_weights=True,
    offloads_optimizer=True,
    weight_copies=0,
    rollout_workers=16,
    num_desktops=128,
    desktop_bytes=5 * GB,
    successes_stored=256,
    replays_ahead=4,
    checkpoints_kept=2,
    engine=ENGINE,
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
    tasks_per_step=2,
    tasks_per_update=1,
    tasks_per_fetch=2,
    num_nodes=1,
    sequence_parallel_size=1,
    num_desktops=16,
    replays_ahead=1,
    engine=dataclasses.replace(ENGINE, tensor_parallel_size=1, max_model_len=16384, num_gpus=8),
)


def about(value: float, share: float = 0.02):
    return pytest.approx(value, rel=share)


def test_a_1080p_screenshot_and_its_trajectory():
    assert screenshot_tokens(UI_TARS, FULL.image) == 69 * 39 == 2691
    # 138 x 78 patches of 3 colours, 2 times, 14 x 14, float32.
    assert pixel_bytes(UI_TARS, FULL.image) == 138 * 78 * 3 * 2 * 14 * 14 * 4
    assert trajectory_bytes(FULL) == 759_507_840
    assert longest_sequence(FULL) == 400 + 15 * (2691 + 16) + 15 * 1024


def test_a_rank_gets_what_its_group_trains_on_and_the_groups_ranks_the_same():
    # 16 GPUs in groups of 4 that share a sequence: four groups for 128 trajectories.
    assert rows_per_rank(FULL) == 32
    assert rows_per_rank(dataclasses.replace(FULL, sequence_parallel_size=2)) == 16
    parts = host_memory(FULL)
    # Each screenshot is in its row, and in the column that the store takes it from.
    images = 2 * 15 * 1920 * 1080 // 2
    assert images_bytes(FULL) == images
    assert parts["screenshots fetched: 8 ranks x 32 trajectories"] == 8 * 32 * images
    assert parts["screenshots waiting in TransferQueue"] == 128 * images // 2
    assert parts["of 32 episodes of a validation"] == 32 * images // 2
    assert parts["weights and optimizer, offloaded or copied"] == about(8.29e9 * 12 / 2, 0.001)


def test_the_gpus_of_a_sequence_share_its_screenshots():
    """Four of fifteen; the fourth has three. Each patch keeps 32 layers' inputs in bf16 and all of one layer."""
    patches, a_patch = 4 * 138 * 78, 2 * (32 * 1280 + 8 * 1280 + 4 * 3420)
    assert update_memory(FULL)["activations, image encoder"] == patches * a_patch
    whole = update_memory(dataclasses.replace(FULL, sequence_parallel_size=1))
    assert whole["activations, image encoder"] * 4 == 15 * patches * a_patch
    # A scoring of all fifteen would keep more than this layer of the language model.
    of_text = layer_activation_bytes(-(-longest_sequence(FULL) // 4), UI_TARS.hidden_size, UI_TARS.intermediate_size)
    assert reference_memory(dataclasses.replace(FULL, reference_split=4))["activations of a layer"] == of_text


def test_a_training_process_keeps_its_rows_screenshots_resized_and_makes_a_micro_batch_of_them():
    image = pixel_bytes(UI_TARS, FULL.image)
    assert made_bytes(FULL) == 2 * 15 * image + 32 * 15 * image // 8
    assert made_bytes(dataclasses.replace(FULL, micro_batch_size=2)) == made_bytes(FULL) + 2 * 15 * image
    # Rows of one episode show the same ones: of 2 x 46 x 5 that are shown, and of 16 episodes' 800, the fewer.
    assert made_bytes(WINDOW) == 2 * 5 * image + 2 * 46 * 5 * image // 8
    assert made_bytes(dataclasses.replace(FULL, tasks_per_fetch=160)) == 2 * 15 * image + KEPT_BYTES


def test_rows_that_carry_pixel_values_are_told_with_the_manager_that_leaves_them_out():
    pixels = dataclasses.replace(FULL, carries_pixels=True)
    assert images_bytes(pixels) == trajectory_bytes(FULL) + images_bytes(FULL) // 2
    parts = host_memory(pixels)
    assert parts["pixel values fetched: 8 ranks x 32 trajectories"] == 8 * 32 * images_bytes(pixels)
    assert parts["rollout workers, an episode each in processing"] == 3 * 8 * trajectory_bytes(FULL)
    (problem,) = estimate(pixels, dataclasses.replace(ENOUGH, memory_bytes=600 * GB)).problems
    assert "agent_loop_manager_class=arpo_verl.plugin.loop_manager.GuiAgentLoopManager" in problem.remedy
    assert not estimate(FULL, dataclasses.replace(ENOUGH, memory_bytes=600 * GB)).problems


def test_an_episode_of_several_rows_has_the_pixel_values_of_each():
    image = pixel_bytes(UI_TARS, FULL.image)
    assert row_bytes(WINDOW) == 5 * image and trajectory_bytes(WINDOW) == 46 * 5 * image
    # 8 GPUs, none shares a sequence: two episodes each.
    assert rows_per_rank(WINDOW) == 2
    parts = host_memory(WINDOW)
    images = (46 * 5 + 50) * 1920 * 1080 // 2
    assert parts["screenshots waiting in TransferQueue"] == 16 * images == about(4.6 * GB, 0.01)
    assert parts["screenshots fetched: 8 ranks x 2 trajectories"] == 16 * images
    assert parts["replays rebuilt ahead, at most 1"] == images_bytes(WINDOW) == images
    assert sum(parts.values()) < 400 * GB
    # The last row: prompt, newest screenshot, a reply of 512, and 49 replies with 5 tokens around each.
    fits = reply_tokens_that_fit(WINDOW)
    assert 400 + 2691 + 16 + 512 + 49 * (fits + 5) <= 16384 < 400 + 2691 + 16 + 512 + 49 * (fits + 6)
    text = str(estimate(WINDOW, ENOUGH))
    assert "46, of 253 MB pixel values each" in text and "2 of 368 rows" in text and "does not fit" not in text


def test_replies_that_leave_no_room_for_all_steps_are_told_where_a_row_holds_them_all():
    assert estimate(WINDOW, ENOUGH).problems == (), "their oldest screenshots give way"
    (problem,) = estimate(dataclasses.replace(WINDOW, max_replies=150), ENOUGH).problems
    assert "150 turns with replies of more than" in problem.what and "gui_agent.max_steps" in problem.remedy


def test_the_brief_form_has_five_lines_with_the_totals_and_what_does_not_fit():
    small = dataclasses.replace(ENOUGH, disk_bytes=100 * GB)
    report = estimate(FULL, small)
    assert [line[:13].strip() for line in report.brief[:5]] == ["model", "a step", "host memory", "GPU memory", "disk"]
    together = [line.split("together")[1].strip() for line in report.lines if "together" in line]
    assert together[0] in report.brief[2] and together[1] in report.brief[3]
    assert "128 episodes" in report.brief[1] and "100 GB free" in report.brief[4]
    assert report.brief[5:] == tuple(f"{problem.subject}: {problem.what}" for problem in report.problems) != ()


def test_an_asynchronous_run_has_a_batch_more_in_the_queue_and_in_its_checkpoints():
    ahead = dataclasses.replace(FULL, is_async=True, batches_in_queue=2)
    assert checkpoint_bytes(FULL) == about(99.5 * GB)
    assert checkpoint_bytes(ahead) - checkpoint_bytes(FULL) == 256 * images_bytes(FULL) == about(8 * GB, 0.01)


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
        assert max(held) == most and kept_checkpoints_bytes(FULL, kept) == most * checkpoint_bytes(FULL)
    ahead = dataclasses.replace(FULL, is_async=True, batches_in_queue=2)
    assert kept_checkpoints_bytes(ahead, 2) == 2 * checkpoint_bytes(FULL) + 3 * 256 * images_bytes(FULL)


class TestPublishedFigures:
    """Computed here, printed there: within 20%, most of them within 2%."""

    def test_training_state_of_zero(self):
        """ZeRO (arXiv 1910.02054), figure 1: 7.5 B parameters, 120 GB; 1.9 GB each of 64 GPUs in stage 3."""
        assert training_state_bytes(7_500_000_000) == 120 * GB
        assert training_state_bytes(7_500_000_000) / 64 == about(1.9 * GB)

    def test_kv_cache_of_paged_attention(self):
        """PagedAttention (arXiv 2309.06180), section 3: a token of OPT-13B needs 800 KB, 2 x 5120 x 40 x 2 bytes."""
        assert kv_bytes_per_token(num_layers=40, num_kv_heads=40, head_dim=128) == 2 * 5120 * 40 * 2 == 800 * 1024

    def test_activations_of_a_layer(self):
        """Korthikanti et al. (arXiv 2205.05198), equation 2: 34 bytes a token and hidden unit beside the scores."""
        tokens, hidden = 2048, 12288
        assert layer_activation_bytes(tokens, hidden, 4 * hidden, mlp_tensors=2) == about(34 * tokens * hidden, 0.06)

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


def test_a_run_that_fits_has_no_problem():
    assert estimate(FULL, ENOUGH).problems == ()
    assert estimate(FULL, NodeCapacity()).problems == (), "nothing is known of the machine"


@pytest.mark.parametrize(
    ("run", "machine", "says", "option"),
    [
        ({"max_reply_tokens": 4096}, {}, "tokens in 65,536", "data.max_response_length"),
        ({}, {"memory_bytes": 400 * GB}, "host memory in a node of 400 GB", "data.train_batch_size"),
        ({}, {"gpu_bytes": 30 * GB}, "in the update", "max_pixels"),
        ({"engine": dataclasses.replace(ENGINE, num_gpus=4)}, {}, "images in vLLM's cache", "cache_gb=23"),
        ({"engine": dataclasses.replace(ENGINE, gpu_memory_utilization=0.2)}, {}, "KV cache of", "utilization"),
        ({"engine": dataclasses.replace(ENGINE, num_gpus=8)}, {}, "32 episodes at their longest", "utilization"),
        ({}, {"disk_bytes": 190 * GB}, "on a disk with 190 GB free", "max_actor_ckpt_to_keep"),
    ],
)
def test_what_does_not_fit_is_told_with_the_option_to_change(run, machine, says, option):
    problems = estimate(dataclasses.replace(FULL, **run), dataclasses.replace(ENOUGH, **machine)).problems
    (problem,) = [problem for problem in problems if says in problem.what]
    assert option in problem.remedy
    assert problem.only_slow == ("vLLM" in says or "longest" in says)


def test_a_cpu_run_has_no_gpu_part_and_trains_in_host_memory():
    run = dataclasses.replace(FULL, on_gpus=False, engine=None)
    text = str(estimate(run, NodeCapacity()))
    assert "GPU" not in text and "vLLM" not in text
    assert host_memory(run)["weights, gradients, optimizer"] == training_state_bytes(UI_TARS.num_parameters)


def test_the_kv_cache_has_what_weights_and_the_largest_batch_leave():
    tokens = kv_cache_tokens(FULL, ENGINE, 80 * GB)
    # 28 layers x 2 of 4 key-value heads of 128 on each of two GPUs.
    held = tokens * 2 * 28 * 2 * 128 * BF16
    assert held < 0.6 * 80 * GB - 8.29 * GB
    assert kv_cache_tokens(FULL, dataclasses.replace(ENGINE, max_num_batched_tokens=65536), 80 * GB) < tokens
    assert kv_cache_tokens(FULL, ENGINE, 10 * GB) == 0


def test_a_reference_model_is_counted_in_host_memory_and_while_it_scores():
    run = dataclasses.replace(FULL, reference_split=4)
    assert host_memory(run)["weights of the reference model"] == 4 * UI_TARS.num_parameters // run.num_nodes
    assert "weights of the reference model" not in host_memory(FULL)
    assert "while the reference model scores" in str(estimate(run, ENOUGH)) and estimate(run, ENOUGH).problems == ()
    unsplit = dataclasses.replace(FULL, reference_split=1)
    assert reference_memory(unsplit)["logits"] == 2 * longest_sequence(FULL) * UI_TARS.vocab_size
    assert sum(reference_memory(run).values()) < sum(reference_memory(unsplit).values())
    small = dataclasses.replace(ENOUGH, gpu_bytes=30 * GB)
    (problem,) = [problem for problem in estimate(unsplit, small).problems if "reference" in problem.what]
    assert "actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size" in problem.remedy
