"""Estimate before a run starts how much it needs: tokens, host memory, GPU memory, disk. Pure arithmetic.

Every figure is for the worst case: all episodes use all their screenshots, and all replies have full length. We count
bytes from shapes as veRL 0.9.1 makes them, but not the processes themselves (Ray, veRL and vLLM take 1 to 3 GB each).
`plugin/recipe/footprint.py` reads `RunSizes` and `NodeCapacity` from a composed recipe and this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arpo_verl.pixels import KEPT_BYTES
from arpo_verl.types import Size

GB = 10**9
FP32, BF16 = 4, 2
# AdamW has two moments for each parameter, in fp32.
ADAM_BYTES = 2 * FP32
# An assumption: what CUDA, NCCL and vLLM's CUDA graphs take on a GPU beside what we count.
GPU_RESERVE_BYTES = 3 * GB
# What a demo's processes take on a CPU beside what we count: 3.8 GB were measured, 0.9 are counted. On GPUs CUDA's
# libraries add to it.
PROCESSES_BYTES = 3 * GB
# Bytes of a desktop's screenshot for each pixel of the screen: 1 MB at 1080p. Windows and text take 0.2 MB
# (docs/replay.md), a photograph as wallpaper takes more than this.
SENT_BYTES_A_PIXEL = 0.5
# Copies of a micro-batch's pixel values while they are joined: each row's, and the whole.
MAKING_FACTOR = 2
# Copies of a trajectory's pixel values while veRL's own rollout worker makes them: 2.25 GB were measured for the 0.76
# GB of 15 screenshots.
PROCESSING_FACTOR = 3
# The recipes' agent loop manager, whose rollout workers leave pixel values to the training processes.
MANAGER = "arpo_verl.plugin.loop_manager.GuiAgentLoopManager"
# Tokens of the chat template around one screenshot and one reply, and around a reply alone.
TURN_TOKENS, REPLY_TURN_TOKENS = 16, 5
# Tokens of a reply: UI-TARS-1.5 writes 50 to 300. We report rows with less room for each of an episode's replies.
COMMON_REPLY_TOKENS = 100


@dataclass(frozen=True)
class Model:
    """The shape of a Qwen-VL policy."""

    num_parameters: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tied_embeddings: bool
    """Whether the output matrix is the input's (Hugging Face's `tie_word_embeddings`)."""
    vision_hidden_size: int
    vision_layers: int
    vision_intermediate_size: int
    patch_size: int
    """Side of a patch in pixels."""
    merge_size: int
    """Patches along the side of a visual token."""
    temporal_patch_size: int = 2
    model_type: str = "qwen2_5_vl"
    """The family, as its `config.json` names it."""

    @classmethod
    def of_config(cls, config: Mapping[str, Any], num_parameters: int) -> Model:
        """Read it from a `config.json` of Qwen2.5-VL or Qwen3-VL, of this or an older version of Transformers.

        Raises:
            KeyError: it belongs to another family.
        """
        # Before Transformers 4.52 the text model's fields were at the top.
        text, vision = {**config, **config.get("text_config", {})}, config["vision_config"]
        hidden_size, num_heads = text["hidden_size"], text["num_attention_heads"]
        return cls(
            num_parameters=num_parameters,
            hidden_size=hidden_size,
            num_layers=text["num_hidden_layers"],
            num_heads=num_heads,
            num_kv_heads=text.get("num_key_value_heads") or num_heads,
            head_dim=text.get("head_dim") or hidden_size // num_heads,
            intermediate_size=text["intermediate_size"],
            vocab_size=text["vocab_size"],
            tied_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
            vision_hidden_size=vision["hidden_size"],
            vision_layers=vision["depth"],
            vision_intermediate_size=vision["intermediate_size"],
            patch_size=vision["patch_size"],
            merge_size=vision["spatial_merge_size"],
            temporal_patch_size=vision.get("temporal_patch_size", 2),
            model_type=config.get("model_type", ""),
        )

    @property
    def sequence_parallel_sizes(self) -> list[int]:
        """Sizes by which Ulysses can split a sequence, as in veRL's `apply_monkey_patch`: heads are divided evenly,
        and key-value heads are divided or repeated."""
        kv = self.num_kv_heads
        return [n for n in range(1, self.num_heads + 1) if self.num_heads % n == 0 and (kv % n == 0 or n % kv == 0)]


# The models that the recipes name, with the values of their `config.json` on the model hub.
_QWEN25_VL_7B = Model(
    num_parameters=8_292_166_656,
    hidden_size=3584,
    num_layers=28,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    intermediate_size=18944,
    vocab_size=152064,
    tied_embeddings=False,
    vision_hidden_size=1280,
    vision_layers=32,
    vision_intermediate_size=3420,
    patch_size=14,
    merge_size=2,
)
KNOWN_MODELS = {
    "ByteDance-Seed/UI-TARS-1.5-7B": _QWEN25_VL_7B,
    "Qwen/Qwen2.5-VL-7B-Instruct": _QWEN25_VL_7B,
    "Qwen/Qwen3-VL-8B-Instruct": Model(
        num_parameters=8_767_123_696,
        model_type="qwen3_vl",
        hidden_size=4096,
        num_layers=36,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=12288,
        vocab_size=151936,
        tied_embeddings=False,
        vision_hidden_size=1152,
        vision_layers=27,
        vision_intermediate_size=4304,
        patch_size=16,
        merge_size=2,
    ),
    "Qwen/Qwen3-VL-2B-Instruct": Model(
        num_parameters=2_127_532_032,
        model_type="qwen3_vl",
        hidden_size=2048,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=6144,
        vocab_size=151936,
        tied_embeddings=True,
        vision_hidden_size=1024,
        vision_layers=24,
        vision_intermediate_size=4096,
        patch_size=16,
        merge_size=2,
    ),
}


@dataclass(frozen=True)
class VllmSettings:
    """vLLM's settings in the recipe."""

    tensor_parallel_size: int
    gpu_memory_utilization: float
    max_num_batched_tokens: int
    max_model_len: int
    image_cache_bytes: int
    num_gpus: int
    """GPUs that generate, while the policy is trained or in turns with training."""
    gpus_of_training_node: int
    """GPUs of a training node that also hold an engine."""


@dataclass(frozen=True)
class RunSizes:
    """The values of a composed recipe that decide how much it needs."""

    recipe: str
    model_name: str
    model: Model
    image: Size
    """Size of a screenshot in pixels after the processor's resizing."""
    screen: Size
    """Size of a screenshot in pixels as the desktop sends it."""
    carries_pixels: bool
    """Whether rows carry pixel values, as with veRL's own agent loop manager, whose rollout workers make them."""
    max_screenshots: int
    """Most screenshots in one row."""
    max_replies: int
    """Most replies in one row, including those that stay as text."""
    rows_per_episode: int
    """Rows of an episode that takes all its turns; 1 if the model sees its whole history."""
    max_reply_tokens: int
    instruction_tokens: int
    """Tokens of the prompt without its screenshot, estimated."""
    max_sequence_tokens: int
    """`data.max_prompt_length` and `data.max_response_length` together."""
    tasks_per_step: int
    rollouts_per_task: int
    tasks_per_update: int
    tasks_per_fetch: int
    """Tasks that the trainer's processes get at once: a step's, or in separate_async an update's."""
    batches_in_queue: int
    """Batches in TransferQueue at once: 1, and those that an asynchronous trainer is ahead."""
    episodes_validated: int
    """Episodes that a validation plays at once. Their rows are in TransferQueue beside the batches."""
    is_async: bool
    num_nodes: int
    """Number of nodes that train."""
    num_rollout_nodes: int
    """Number of nodes that only generate."""
    gpus_per_node: int
    on_gpus: bool
    sequence_parallel_size: int
    micro_batch_size: int
    offloads_weights: bool
    offloads_optimizer: bool
    weight_copies: int
    """Copies of the weights in host memory, with which the trainer scores as at the start of a step."""
    rollout_workers: int
    num_desktops: int
    desktop_bytes: int
    successes_stored: int
    """Most stored successes: each task has as many as it may."""
    replays_ahead: int
    """Replays whose rows may wait in the trainer's memory."""
    checkpoints_kept: int | None
    engine: VllmSettings | None
    """None if the engine is not vLLM."""
    reference_split: int = 0
    """Number of GPUs that a sequence of the reference model is split over; 0 without a reference model."""

    @property
    def num_gpus(self) -> int:
        """Number of GPUs that train."""
        return self.num_nodes * self.gpus_per_node

    @property
    def num_nodes_with_gpus(self) -> int:
        return self.num_nodes + self.num_rollout_nodes

    @property
    def rollouts_per_step(self) -> int:
        return self.tasks_per_step * self.rollouts_per_task


@dataclass(frozen=True)
class NodeCapacity:
    """What a training node has; None if it is not known."""

    memory_bytes: int | None = None
    gpu_bytes: int | None = None
    disk_bytes: int | None = None


# --- One episode -------------------------------------------------------------------------------------------------


def screenshot_tokens(model: Model, image: Size) -> int:
    """Return the visual tokens of one screenshot."""
    side = model.patch_size * model.merge_size
    return (image.width // side) * (image.height // side)


def pixel_bytes(model: Model, image: Size) -> int:
    """Return the bytes of one screenshot's pixel values: float32 for each patch, with the image repeated in time."""
    patches = (image.width // model.patch_size) * (image.height // model.patch_size)
    return patches * 3 * model.temporal_patch_size * model.patch_size**2 * FP32


def sequence_tokens(run: RunSizes, screenshots: int, reply_tokens: int) -> int:
    """Return the tokens of one row, which may be the whole episode.

    Args:
        screenshots: number of screenshots in it.
        reply_tokens: tokens of all its replies together.
    """
    shown = screenshots * (screenshot_tokens(run.model, run.image) + TURN_TOKENS)
    return run.instruction_tokens + shown + reply_tokens


def longest_sequence(run: RunSizes) -> int:
    """Return the tokens of the longest row, with all screenshots and full replies, before the token limits cut it."""
    return sequence_tokens(run, run.max_screenshots, run.max_replies * run.max_reply_tokens)


def reply_tokens_that_fit(run: RunSizes) -> int:
    """Return the average tokens of a reply with which an episode of several rows takes all its turns: its last row
    has the newest screenshot, room for a reply, and the earlier replies as text."""
    left = run.max_sequence_tokens - sequence_tokens(run, 1, run.max_reply_tokens)
    return max(0, left // max(1, run.max_replies - 1) - REPLY_TURN_TOKENS)


def row_bytes(run: RunSizes) -> int:
    """Return the bytes of the pixel values of a row with all its screenshots."""
    return run.max_screenshots * pixel_bytes(run.model, run.image)


def trajectory_bytes(run: RunSizes) -> int:
    """Return the bytes of the pixel values of an episode with all its screenshots, over all its rows."""
    return run.rows_per_episode * row_bytes(run)


def sent_bytes(run: RunSizes) -> int:
    """Return the bytes of a screenshot as the desktop sends it."""
    return int(run.screen.width * run.screen.height * SENT_BYTES_A_PIXEL)


def store_bytes(run: RunSizes) -> int:
    """Return the bytes of the screenshots in a full store; the records are less than a hundredth of them."""
    return run.successes_stored * run.max_replies * sent_bytes(run)


def images_bytes(run: RunSizes) -> int:
    """Return the bytes of images in an episode's rows on their way: each row's, and each screenshot for the store."""
    sent = sent_bytes(run)
    shown = trajectory_bytes(run) if run.carries_pixels else run.rows_per_episode * run.max_screenshots * sent
    return shown + run.max_replies * sent


# --- A node's host memory and disk -------------------------------------------------------------------------------


def rows_per_rank(run: RunSizes) -> int:
    """Return the trajectories that one training process gets at once; those that share a sequence get the same."""
    groups = max(1, run.num_gpus // run.sequence_parallel_size)
    return -(-run.tasks_per_fetch * run.rollouts_per_task // groups)


def queue_bytes(run: RunSizes) -> int:
    """Return the bytes of images in TransferQueue at once, on all nodes together, without a validation's."""
    return run.batches_in_queue * run.rollouts_per_step * images_bytes(run)


def made_bytes(run: RunSizes) -> int:
    """Return the bytes of pixel values that a training process makes itself: a micro-batch's, and one resized frame
    for each screenshot of its rows, a byte a value (`arpo_verl/pixels.py`)."""
    shown = rows_per_rank(run) * run.rows_per_episode * run.max_screenshots
    different = min(shown, run.tasks_per_fetch * run.rollouts_per_task * run.max_replies)
    resized = pixel_bytes(run.model, run.image) // (FP32 * run.model.temporal_patch_size)
    return MAKING_FACTOR * run.micro_batch_size * row_bytes(run) + min(KEPT_BYTES, different * resized)


def host_memory(run: RunSizes) -> dict[str, int]:
    """Return the bytes on a training node, by what holds them. Each process keeps one copy of what it fetched until it
    is done with it: `tests/plugin/test_queue_memory.py` measures this."""
    ranks, rows = run.gpus_per_node, rows_per_rank(run)
    parameters = run.model.num_parameters
    kind = "pixel values" if run.carries_pixels else "screenshots"
    parts = {
        f"{kind} waiting in TransferQueue": queue_bytes(run) // run.num_nodes_with_gpus,
        f"of {run.episodes_validated} episodes of a validation": run.episodes_validated
        * images_bytes(run)
        // run.num_nodes_with_gpus,
        f"{kind} fetched: {ranks} ranks x {rows} trajectories": ranks * rows * images_bytes(run),
    }
    if run.carries_pixels:
        at_work = min(-(-run.rollout_workers // run.num_nodes_with_gpus), run.batches_in_queue * run.tasks_per_step)
        parts["rollout workers, an episode each in processing"] = PROCESSING_FACTOR * trajectory_bytes(run) * at_work
    else:
        parts[f"pixel values made of them by {ranks} ranks"] = ranks * made_bytes(run)
    if run.on_gpus:
        states = FP32 * run.offloads_weights + ADAM_BYTES * run.offloads_optimizer
        states += FP32 * run.weight_copies
        if states:
            parts["weights and optimizer, offloaded or copied"] = states * parameters // run.num_nodes
        if run.reference_split:
            parts["weights of the reference model"] = FP32 * parameters // run.num_nodes
    else:
        parts["weights, gradients, optimizer"] = training_state_bytes(parameters)
        if run.reference_split:
            parts["weights of the reference model"] = FP32 * parameters
    if run.engine is not None:
        engines = run.engine.gpus_of_training_node // run.engine.tensor_parallel_size
        parts[f"vLLM's cache of processed images, {engines} engines"] = engines * run.engine.image_cache_bytes
    parts["processes of Python, torch and Ray"] = PROCESSES_BYTES
    here = -(-run.num_desktops // run.num_nodes_with_gpus)
    parts[f"desktops: {here} x {size(run.desktop_bytes)}"] = here * run.desktop_bytes
    parts["store of successes, at most"] = store_bytes(run)
    parts[f"replays rebuilt ahead, at most {run.replays_ahead}"] = run.replays_ahead * images_bytes(run)
    return parts


def training_state_bytes(num_parameters: int) -> int:
    """Count weights, gradients and AdamW's moments in fp32: 16 bytes a parameter, as in ZeRO (arXiv 1910.02054)."""
    return num_parameters * (FP32 + FP32 + ADAM_BYTES)


def checkpoint_bytes(run: RunSizes) -> int:
    """Count one checkpoint: weights and moments in fp32; in an asynchronous run also the queue. Beside it is the store
    of successes, `store_bytes` at most."""
    return run.model.num_parameters * (FP32 + ADAM_BYTES) + saved_queue_bytes(run)


def saved_queue_bytes(run: RunSizes) -> int:
    """Count the part of TransferQueue in a checkpoint."""
    return queue_bytes(run) if run.is_async else 0


def kept_checkpoints_bytes(run: RunSizes, kept: int) -> int:
    """Count all checkpoints of a start while the newest is written. veRL removes the oldest weights before, but a lone
    one's after (`checkpoint_manager.py: ensure_checkpoint_capacity`). The oldest queue goes last."""
    queue = saved_queue_bytes(run)
    return max(kept, 2) * (checkpoint_bytes(run) - queue) + (kept + 1) * queue


# --- A GPU's memory ----------------------------------------------------------------------------------------------


def layer_activation_bytes(tokens: int, hidden_size: int, intermediate_size: int, mlp_tensors: int = 4) -> int:
    """Count what one transformer layer keeps in bf16 for its backward pass, with FlashAttention.

    For a layer of GPT (mlp_tensors 2, four times hidden_size) these are 32 of the 34 bytes for each token and hidden
    unit in Korthikanti et al. (arXiv 2205.05198, equation 2, without the attention scores). The other two are dropout
    masks, which do not exist here. SwiGLU keeps four tensors of the MLP.
    """
    return tokens * BF16 * (8 * hidden_size + mlp_tensors * intermediate_size)


def update_memory(run: RunSizes) -> dict[str, int]:
    """Count the bytes on one GPU at the peak of an update, with gradient checkpointing: computed, not measured."""
    model, tokens = run.model, min(longest_sequence(run), run.max_sequence_tokens) * run.micro_batch_size
    local = -(-tokens // run.sequence_parallel_size)
    patches = _encoded_patches(run, run.sequence_parallel_size)
    layer = layer_activation_bytes(local, model.hidden_size, model.intermediate_size)
    vision_layer = layer_activation_bytes(patches, model.vision_hidden_size, model.vision_intermediate_size)
    checkpoints = BF16 * model.num_layers * local * model.hidden_size
    vision_checkpoints = BF16 * model.vision_layers * patches * model.vision_hidden_size
    return {
        "weights, a share of fp32": FP32 * model.num_parameters // run.num_gpus,
        "gradients, a share of fp32": FP32 * model.num_parameters // run.num_gpus,
        "optimizer, a share": ADAM_BYTES * model.num_parameters // run.num_gpus,
        "gathered weights, two layers and the largest matrix": _gathered_bytes(model),
        "activations, language model": checkpoints + layer,
        "activations, image encoder": vision_checkpoints + vision_layer,
        # In bf16, and their gradient.
        "logits": 2 * BF16 * local * model.vocab_size,
        "CUDA and NCCL (assumed)": GPU_RESERVE_BYTES,
    }


def reference_memory(run: RunSizes) -> dict[str, int]:
    """Count the bytes on one GPU while the reference model scores, layer by layer and without gradients.

    FSDP keeps its weights in host memory, whatever the recipe offloads: `_build_fsdp_module` of `transformer_impl.py`.
    """
    model, tokens = run.model, min(longest_sequence(run), run.max_sequence_tokens) * run.micro_batch_size
    local = -(-tokens // run.reference_split)
    patches = _encoded_patches(run, run.reference_split)
    layer = layer_activation_bytes(local, model.hidden_size, model.intermediate_size)
    vision_layer = layer_activation_bytes(patches, model.vision_hidden_size, model.vision_intermediate_size)
    states = FP32 * (not run.offloads_weights) + ADAM_BYTES * (not run.offloads_optimizer)
    return {
        "weights and optimizer of the policy, not offloaded": states * model.num_parameters // run.num_gpus,
        "gathered weights, two layers and the largest matrix": _gathered_bytes(model),
        "activations of a layer": max(layer, vision_layer),
        "logits": BF16 * local * model.vocab_size,
        "CUDA and NCCL (assumed)": GPU_RESERVE_BYTES,
    }


def _encoded_patches(run: RunSizes, ranks: int) -> int:
    """Count the patches that one of the ranks that share a sequence encodes: its part of a micro-batch's screenshots
    (`arpo_verl/plugin/shared_encoder.py`)."""
    screenshots = -(-run.micro_batch_size * run.max_screenshots // ranks)
    return screenshots * screenshot_tokens(run.model, run.image) * run.model.merge_size**2


def _gathered_bytes(model: Model) -> int:
    embeddings = (1 if model.tied_embeddings else 2) * model.vocab_size * model.hidden_size
    in_layer = (model.num_parameters - embeddings) // model.num_layers
    return BF16 * (2 * in_layer + model.vocab_size * model.hidden_size)


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """Count keys and values of one token in bf16; OPT-13B gives the 800 KB of the PagedAttention paper (2309.06180)."""
    return 2 * num_layers * num_kv_heads * head_dim * BF16


def kv_cache_tokens(run: RunSizes, engine: VllmSettings, gpu_bytes: int) -> int:
    """Compute the tokens in one engine's KV cache, after the memory for weights and the largest batch."""
    model, split = run.model, engine.tensor_parallel_size
    batch, patches = engine.max_num_batched_tokens, engine.max_num_batched_tokens * model.merge_size**2
    working = layer_activation_bytes(batch, model.hidden_size, model.intermediate_size // split)
    working += layer_activation_bytes(patches, model.vision_hidden_size, model.vision_intermediate_size)
    free = engine.gpu_memory_utilization * gpu_bytes - BF16 * model.num_parameters / split
    free -= working + GPU_RESERVE_BYTES
    per_token = kv_bytes_per_token(model.num_layers, model.num_kv_heads, model.head_dim)
    return max(0, int(free / (per_token / min(split, model.num_kv_heads))))


def episodes_per_engine(run: RunSizes, engine: VllmSettings) -> int:
    """Count the episodes that take turns on one engine: at most as many as there are desktops."""
    num_engines = max(1, engine.num_gpus // engine.tensor_parallel_size)
    return -(-min(run.num_desktops, run.batches_in_queue * run.rollouts_per_step) // num_engines)


# --- The report --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """Something that does not fit, and the options that change it."""

    what: str
    remedy: str
    only_slow: bool = False
    """Whether the run works, but slowly."""

    @property
    def subject(self) -> str:
        return "slow" if self.only_slow else "does not fit"


@dataclass(frozen=True)
class Footprint:
    """What a run needs, for people to read."""

    lines: tuple[str, ...]
    problems: tuple[Problem, ...]
    brief: tuple[str, ...]
    """Only the totals, in five lines, and what does not fit."""

    def __str__(self) -> str:
        problems = [f"{problem.subject}: {problem.what}\n  -> {problem.remedy}" for problem in self.problems]
        return "\n".join([*self.lines, *problems])


def size(num_bytes: float) -> str:
    """Format bytes in GB or MB, with as many digits as are meaningful."""
    if num_bytes < GB:
        return f"{num_bytes / 10**6:.0f} MB"
    return f"{num_bytes / GB:,.{0 if num_bytes >= 20 * GB else 1}f} GB"


def estimate(run: RunSizes, machine: NodeCapacity) -> Footprint:
    """Estimate what a run needs on nodes of this capacity."""
    lines = [f"{run.recipe} with {run.model_name} ({run.model.num_parameters / GB:.3g} B parameters), computed:"]
    problems: list[Problem] = []
    for section in (_episode, _host, _gpu, _engine, _disk):
        section(run, machine, lines, problems)
    return Footprint(tuple(lines), tuple(problems), _brief(run, machine, problems))


def _brief(run: RunSizes, machine: NodeCapacity, problems: list[Problem]) -> tuple[str, ...]:
    def among(amount: str, available: int | None) -> str:
        return amount if available is None else f"{amount} of {size(available)}"

    one, kept = checkpoint_bytes(run), run.checkpoints_kept
    checkpoints = f"{size(kept_checkpoints_bytes(run, kept))} of checkpoints" if kept else f"{size(one)} a checkpoint"
    gpu = among(size(sum(update_memory(run).values())), machine.gpu_bytes) if run.on_gpus else "none"
    free = "" if machine.disk_bytes is None else f"; {size(machine.disk_bytes)} free"
    return (
        f"model        {run.model_name}, {run.model.num_parameters / GB:.3g} B parameters",
        f"a step       {run.rollouts_per_step} episodes on {run.num_desktops} desktops",
        f"host memory  {among(size(sum(host_memory(run).values())), machine.memory_bytes)} at most",
        f"GPU memory   {gpu}",
        f"disk         {checkpoints}, up to {size(store_bytes(run))} of successes in each{free}",
        *(f"{problem.subject}: {problem.what}" for problem in problems),
    )


def _line(subject: str, amount: str) -> str:
    return f"  {subject:<55} {amount}"


def _table(title: str, parts: Mapping[str, int], lines: list[str], there: str) -> int:
    total = sum(parts.values())
    lines.append(title)
    lines += [_line(subject, f"{size(amount):>10}") for subject, amount in parts.items()]
    lines.append(_line("together", f"{size(total):>10} {there}"))
    return total


def _episode(run: RunSizes, machine: NodeCapacity, lines: list[str], problems: list[Problem]) -> None:
    tokens, longest = screenshot_tokens(run.model, run.image), longest_sequence(run)
    rounds = -(-run.rollouts_per_step // run.num_desktops)
    images = size(run.rollouts_per_step * images_bytes(run))
    in_rows, reply = run.rows_per_episode > 1, f"{reply_tokens_that_fit(run):,} tokens on average"
    cut = "; the oldest screenshots give way" if in_rows and longest > run.max_sequence_tokens else ""
    lines += [
        "an episode at its longest, and a step",
        _line("screenshot", f"{run.image.width} x {run.image.height} pixels, {tokens:,} tokens"),
        _line(f"visual tokens of {run.max_screenshots} screenshots", f"{run.max_screenshots * tokens:,}"),
        _line("longest sequence", f"{longest:,} tokens; {run.max_sequence_tokens:,} allowed{cut}"),
    ]
    if in_rows:
        lines += [
            _line("rows of an episode", f"{run.rows_per_episode}, of {size(row_bytes(run))} pixel values each"),
            _line(f"all {run.max_replies} turns fit with replies of", reply),
        ]
    updates = -(-run.tasks_per_step // run.tasks_per_update)
    rows = min(run.tasks_per_update, run.tasks_per_step) * run.rollouts_per_task * run.rows_per_episode
    lines += [
        _line("its pixel values, float32", size(trajectory_bytes(run))),
        _line("its images on their way", f"{size(images_bytes(run))}{', pixel values' * run.carries_pixels}"),
        _line("updates a step", f"{updates} of {rows:,} rows"),
        _line(
            f"a step's {run.rollouts_per_step} episodes on {run.num_desktops} desktops",
            f"in {rounds} round{'s' * (rounds > 1)}; {images} in the queue",
        ),
    ]
    if in_rows and reply_tokens_that_fit(run) < min(run.max_reply_tokens, COMMON_REPLY_TOKENS):
        problems.append(
            Problem(
                f"{run.max_replies} turns with replies of more than {reply} in rows of {run.max_sequence_tokens:,}; "
                "longer episodes end as token_limit",
                "raise data.max_response_length (and rollout.max_model_len), or lower gui_agent.max_steps",
            )
        )
    if not in_rows and longest > run.max_sequence_tokens:
        problems.append(
            Problem(
                f"an episode of {longest:,} tokens in {run.max_sequence_tokens:,}; longer ones end as token_limit",
                "raise data.max_response_length (and rollout.max_model_len), or lower gui_agent.max_reply_tokens or "
                "gui_agent.max_screenshots",
            )
        )


def _host(run: RunSizes, machine: NodeCapacity, lines: list[str], problems: list[Problem]) -> None:
    here = "" if machine.memory_bytes is None else f"of {size(machine.memory_bytes)}"
    total = _table("host memory of a node that trains", host_memory(run), lines, here)
    if machine.memory_bytes is not None and total > machine.memory_bytes:
        remedies = [f"set actor_rollout_ref.rollout.agent.agent_loop_manager_class={MANAGER}"] * run.carries_pixels
        remedies += ["lower data.train_batch_size, gui_agent.max_screenshots or data.mm_processor_kwargs.max_pixels"]
        if run.sequence_parallel_size > 1:
            remedies.append("halve ulysses_sequence_parallel_size: each rank gets half as many trajectories")
        remedies += ["host desktops on other nodes", "take more nodes"]
        problems.append(
            Problem(f"{size(total)} of host memory in a node of {size(machine.memory_bytes)}", "; ".join(remedies))
        )


def _gpu(run: RunSizes, machine: NodeCapacity, lines: list[str], problems: list[Problem]) -> None:
    if not run.on_gpus:
        return
    gpu = machine.gpu_bytes
    there = "" if gpu is None else f"of {size(gpu)}"
    total = _table("memory of a GPU in the update", update_memory(run), lines, there)
    if run.reference_split:
        scoring = _table("the same while the reference model scores", reference_memory(run), lines, there)
        if gpu is not None and scoring > gpu:
            problems.append(
                Problem(
                    f"{size(scoring)} in a GPU of {size(gpu)}, while the reference model scores",
                    "raise actor_rollout_ref.ref.fsdp_config.ulysses_sequence_parallel_size, or leave the KL term out",
                )
            )
    if gpu is not None and total > gpu:
        sizes = ", ".join(map(str, run.model.sequence_parallel_sizes))
        problems.append(
            Problem(
                f"{size(total)} in a GPU of {size(gpu)}, in the update",
                "lower data.mm_processor_kwargs.max_pixels or gui_agent.max_screenshots; raise "
                f"actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size (this model: {sizes}); set "
                "actor_rollout_ref.actor.entropy_from_logits_with_chunking=true",
            )
        )


def _engine(run: RunSizes, machine: NodeCapacity, lines: list[str], problems: list[Problem]) -> None:
    engine = run.engine
    if engine is None:
        return
    episodes = episodes_per_engine(run, engine)
    # vLLM keeps images in the model's own precision.
    need = episodes * row_bytes(run) // 2
    lines += [
        f"a vLLM engine of {engine.tensor_parallel_size} GPUs, with {episodes} episodes at once",
        _line("processed images of these", f"{size(need)}; its cache has {size(engine.image_cache_bytes)}"),
    ]
    if need > engine.image_cache_bytes:
        gib = -(-need // 2**30)
        problems.append(
            Problem(
                f"{size(need)} of processed images in vLLM's cache of {size(engine.image_cache_bytes)}: every turn "
                "processes all of its images again",
                f"set actor_rollout_ref.rollout.engine_kwargs.vllm.mm_processor_cache_gb={gib}",
                only_slow=True,
            )
        )
    if machine.gpu_bytes is None:
        return
    longest = min(longest_sequence(run), run.max_sequence_tokens)
    tokens = kv_cache_tokens(run, engine, machine.gpu_bytes)
    lines.append(_line("KV cache", f"{tokens:,} tokens: {tokens // longest} episodes at their longest"))
    if tokens < engine.max_model_len:
        problems.append(
            Problem(
                f"a KV cache of {tokens:,} tokens, fewer than rollout.max_model_len ({engine.max_model_len:,})",
                "raise rollout.gpu_memory_utilization or rollout.tensor_model_parallel_size, or lower "
                "rollout.max_num_batched_tokens",
            )
        )
    elif tokens // longest < episodes:
        problems.append(
            Problem(
                f"{episodes} episodes at their longest in a KV cache for {tokens // longest}; vLLM then drops some "
                "histories and prefills them again",
                "raise rollout.gpu_memory_utilization or rollout.tensor_model_parallel_size, if prefill takes long",
                only_slow=True,
            )
        )


def _disk(run: RunSizes, machine: NodeCapacity, lines: list[str], problems: list[Problem]) -> None:
    one, kept = checkpoint_bytes(run), run.checkpoints_kept
    total = kept_checkpoints_bytes(run, kept) if kept else one
    held = f"{size(total)} while one is written and {kept} kept" if kept else "all kept"
    lines += ["disk", _line("checkpoints", f"{size(one)} each, {held}")]
    lines.append(_line("store of successes in each, at most", size(store_bytes(run))))
    if machine.disk_bytes is not None and total > machine.disk_bytes:
        problems.append(
            Problem(
                f"checkpoints of {size(total)} on a disk with {size(machine.disk_bytes)} free",
                "put run_dir on a larger disk, or lower trainer.max_actor_ckpt_to_keep",
            )
        )
