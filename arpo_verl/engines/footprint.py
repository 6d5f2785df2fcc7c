"""Estimate what a run needs before it starts: tokens, host memory, GPU memory, disk. Four sums to check by hand.

Each sum is for the worst case: all episodes take all their turns, all replies have full length, the store is full.
Shapes and copies are those of veRL 0.9.1. `plugin/recipe/footprint.py` reads `RunSizes` and `NodeCapacity` from a
composed recipe and this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from arpo_verl.engines.pixels import KEPT_BYTES
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
# Tokens of the chat template around one screenshot and one reply, and around a reply alone.
TURN_TOKENS, REPLY_TURN_TOKENS = 16, 5
# Tokens of a reply: UI-TARS-1.5 writes 50 to 300. Rows need room for this much of each of an episode's replies.
COMMON_REPLY_TOKENS = 100

_FEWER_TOKENS = (
    "longer episodes end as token_limit; raise data.max_response_length (and rollout.max_model_len), or lower "
    "gui_agent.max_reply_tokens, gui_agent.max_screenshots or gui_agent.max_steps"
)
_LESS_HOST_MEMORY = (
    "lower data.train_batch_size, gui_agent.max_screenshots or data.mm_processor_kwargs.max_pixels; host desktops on "
    "other nodes; take more nodes"
)
_LESS_GPU_MEMORY = (
    "lower data.mm_processor_kwargs.max_pixels or gui_agent.max_screenshots; raise actor_rollout_ref.actor.fsdp_config."
    "ulysses_sequence_parallel_size (this model: {sizes}); set actor_rollout_ref.actor."
    "entropy_from_logits_with_chunking=true"
)
_LESS_DISK = "put run_dir on a larger disk, or lower trainer.max_actor_ckpt_to_keep"


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


# The models that the recipes name, with the values of their `config.json` on the model hub. In each line: parameters;
# hidden size, layers, heads, key-value heads, a head's size, intermediate size; vocabulary, whether tied; the image
# encoder's hidden size, layers, intermediate size; patch, patches of a token, images of a patch; family.
_QWEN25_7B = Model(8_292_166_656, 3584, 28, 28, 4, 128, 18944, 152064, False, 1280, 32, 3420, 14, 2)
_QWEN3_8B = Model(8_767_123_696, 4096, 36, 32, 8, 128, 12288, 151936, False, 1152, 27, 4304, 16, 2, 2, "qwen3_vl")
_QWEN3_2B = Model(2_127_532_032, 2048, 28, 16, 8, 128, 6144, 151936, True, 1024, 24, 4096, 16, 2, 2, "qwen3_vl")
KNOWN_MODELS = {
    "ByteDance-Seed/UI-TARS-1.5-7B": _QWEN25_7B,
    "Qwen/Qwen2.5-VL-7B-Instruct": _QWEN25_7B,
    "Qwen/Qwen3-VL-8B-Instruct": _QWEN3_8B,
    "Qwen/Qwen3-VL-2B-Instruct": _QWEN3_2B,
}


@dataclass(frozen=True)
class RunSizes:
    """The values of a composed recipe that decide how much it needs."""

    model_name: str
    model: Model
    image: Size
    """Size of a screenshot in pixels after the processor's resizing."""
    screen: Size
    """Size of a screenshot in pixels as the desktop sends it."""
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
    rollouts_per_step: int
    rollouts_fetched: int
    """Episodes that the trainer's processes get at once: a step's, or in separate_async an update's."""
    rollouts_in_queue: int
    """Episodes in TransferQueue at once: a step's, and those that an asynchronous trainer is ahead."""
    sends_pixels: bool
    """Whether rows carry pixel values, about 60 times as much, as with veRL's own agent loop manager."""
    saves_queue: bool
    """Whether a checkpoint holds the queue, as in an asynchronous mode."""
    num_nodes: int
    """Number of nodes that train."""
    num_rollout_nodes: int
    """Number of nodes that only generate."""
    gpus_per_node: int
    on_gpus: bool
    sequence_parallel_size: int
    micro_batch_size: int
    host_bytes_a_parameter: int
    """Bytes of host memory for each parameter, on all nodes together: see `parameter_bytes`."""
    image_cache_bytes: int
    """Bytes of vLLM's caches of processed images on a training node."""
    num_desktops: int
    desktop_bytes: int
    successes_stored: int
    """Most stored successes: each task has as many as it may."""
    checkpoints_kept: int | None
    """None: all."""

    @property
    def num_gpus(self) -> int:
        """Number of GPUs that train."""
        return self.num_nodes * self.gpus_per_node


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


def images_bytes(run: RunSizes) -> int:
    """Return the bytes of an episode's images on their way: each row's screenshots, and each turn's for the store."""
    sent = _sent_bytes(run)
    in_row = pixel_bytes(run.model, run.image) if run.sends_pixels else sent
    return run.rows_per_episode * run.max_screenshots * in_row + run.max_replies * sent


def store_bytes(run: RunSizes) -> int:
    """Return the bytes of the screenshots in a full store; the records are less than a hundredth of them."""
    return run.successes_stored * run.max_replies * _sent_bytes(run)


def _sent_bytes(run: RunSizes) -> int:
    return int(run.screen.width * run.screen.height * SENT_BYTES_A_PIXEL)


# --- The four sums -----------------------------------------------------------------------------------------------


def row_tokens(run: RunSizes) -> dict[str, int]:
    """Return the tokens of an episode's last row: prompt + screenshots x (visual tokens + 16) + replies.

    Where an episode has several rows, older screenshots give way to replies. The row then has one screenshot, a full
    reply, and 105 tokens for each earlier reply (`COMMON_REPLY_TOKENS` and the template's).
    """
    visual, full, turns = screenshot_tokens(run.model, run.image), run.max_reply_tokens, run.max_replies
    (width, height), shown, earlier = run.image, run.max_screenshots, full
    if run.rows_per_episode > 1:
        shown, earlier = 1, min(full, COMMON_REPLY_TOKENS) + REPLY_TURN_TOKENS
    return {
        "prompt": run.instruction_tokens,
        f"screenshots of {width} x {height} pixels: {shown} x ({visual:,} + {TURN_TOKENS})": shown
        * (visual + TURN_TOKENS),
        f"earlier replies: {turns - 1} x {earlier:,}": (turns - 1) * earlier,
        "the last reply": full,
    }


def host_memory(run: RunSizes) -> dict[str, int]:
    """Return the bytes on a node that trains: images + pixel values + weights + engines + processes + desktops + store.

    An episode's images are in TransferQueue, which the nodes share, and in each training process that fetched them:
    `tests/plugin/test_queue_memory.py` measures one copy. GPUs that share a sequence fetch the same episodes. A process
    makes float32 pixel values of a micro-batch, in two copies, and keeps its resized screenshots, a byte a value.
    """
    nodes, ranks, pixels = run.num_nodes + run.num_rollout_nodes, run.gpus_per_node, pixel_bytes(run.model, run.image)
    fetched = -(-run.rollouts_fetched // max(1, run.num_gpus // run.sequence_parallel_size))
    episodes = -(-run.rollouts_in_queue // nodes) + ranks * fetched
    resized = fetched * run.rows_per_episode * run.max_screenshots * pixels // (FP32 * run.model.temporal_patch_size)
    made = 2 * run.micro_batch_size * run.max_screenshots * pixels + min(KEPT_BYTES, resized)
    states, here = run.host_bytes_a_parameter, -(-run.num_desktops // nodes)
    return {
        f"screenshots on their way: {episodes} episodes x {size(images_bytes(run))}": episodes * images_bytes(run),
        f"pixel values made: {ranks} processes x {size(made)}": ranks * made,
        f"weights, optimizer: {states} bytes x parameters / {run.num_nodes}": states
        * run.model.num_parameters
        // run.num_nodes,
        "vLLM's caches of processed images": run.image_cache_bytes,
        "processes of Python, torch and Ray": PROCESSES_BYTES,
        f"desktops: {here} x {size(run.desktop_bytes)}": here * run.desktop_bytes,
        f"successes: {run.successes_stored} x {run.max_replies} screenshots": store_bytes(run),
    }


def update_memory(run: RunSizes) -> dict[str, int]:
    """Return the bytes on one GPU at the peak of an update: states + gathered weights + activations + logits + CUDA.

    FSDP shares the states among all GPUs. GPUs that share a sequence share its screenshots too
    (`plugin/shared_encoder.py`). Logits and their gradient are bf16. A reference model scores with less than this.
    Computed; docs/osworld.md has measured values beside it.
    """
    model, split = run.model, run.sequence_parallel_size
    tokens = -(-min(longest_sequence(run), run.max_sequence_tokens) * run.micro_batch_size // split)
    screenshots = -(-run.micro_batch_size * run.max_screenshots // split)
    patches = screenshots * screenshot_tokens(model, run.image) * model.merge_size**2
    matrix = model.vocab_size * model.hidden_size
    layers = 2 * (model.num_parameters - (1 if model.tied_embeddings else 2) * matrix) // model.num_layers
    states = training_state_bytes(model.num_parameters) // run.num_gpus
    return {
        f"weights, gradients, optimizer: 16 bytes x parameters / {run.num_gpus}": states,
        "gathered weights: two layers and the output matrix": BF16 * (layers + matrix),
        f"activations of {tokens:,} tokens": activation_bytes(
            tokens, model.num_layers, model.hidden_size, model.intermediate_size
        ),
        f"activations of {patches:,} patches of images": activation_bytes(
            patches, model.vision_layers, model.vision_hidden_size, model.vision_intermediate_size
        ),
        f"logits: 4 bytes x {tokens:,} x {model.vocab_size:,}": 2 * BF16 * tokens * model.vocab_size,
        "CUDA and NCCL (assumed)": GPU_RESERVE_BYTES,
    }


def training_state_bytes(num_parameters: int) -> int:
    """Count weights, gradients and AdamW's moments in fp32: 16 bytes a parameter, as in ZeRO (arXiv 1910.02054)."""
    return num_parameters * (FP32 + FP32 + ADAM_BYTES)


def activation_bytes(tokens: int, layers: int, hidden_size: int, intermediate_size: int, mlp_tensors: int = 4) -> int:
    """Count what the backward pass needs in bf16 with gradient checkpointing: each layer's input, and all of one layer.

    All of a layer of GPT (layers 0, mlp_tensors 2, four times hidden_size) are 32 of the 34 bytes for each token and
    hidden unit in Korthikanti et al. (arXiv 2205.05198, equation 2, without the attention scores). The other two are
    dropout masks, which do not exist here. SwiGLU keeps four tensors of the MLP.
    """
    return tokens * BF16 * ((layers + 8) * hidden_size + mlp_tensors * intermediate_size)


def checkpoint_bytes(run: RunSizes) -> int:
    """Count one checkpoint without store and queue: the weights and AdamW's moments in fp32."""
    return run.model.num_parameters * (FP32 + ADAM_BYTES)


def disk_space(run: RunSizes) -> dict[str, int]:
    """Return the bytes of the checkpoints that a run keeps: weights, the queue of an asynchronous run, and the store,
    whose files they share.

    veRL removes the oldest weights before it writes others, but a lone one's afterwards (`checkpoint_manager.py:
    ensure_checkpoint_capacity`); the oldest queue goes last. If a run keeps all checkpoints, this counts one.
    """
    kept, queue = run.checkpoints_kept or 0, run.rollouts_in_queue * images_bytes(run) * run.saves_queue
    weights = max(kept, 2) if kept else 1
    return {
        f"weights, optimizer: {weights} x {size(checkpoint_bytes(run))}": weights * checkpoint_bytes(run),
        f"TransferQueue: {kept + 1} x {size(queue)}": (kept + 1) * queue,
        f"successes: {run.successes_stored} x {run.max_replies} screenshots": store_bytes(run),
    }


# --- The report --------------------------------------------------------------------------------------------------


class Problem(NamedTuple):
    """Something that does not fit, and the options that change it."""

    what: str
    remedy: str


class Footprint(NamedTuple):
    """What a run needs, for people to read."""

    lines: tuple[str, ...]
    problems: tuple[Problem, ...]
    brief: tuple[str, ...]
    """Only the totals, and what does not fit."""

    def __str__(self) -> str:
        return "\n".join([*self.lines, *(f"does not fit: {what}\n  -> {remedy}" for what, remedy in self.problems)])


def size(num_bytes: float) -> str:
    """Format bytes in GB or MB, with as many digits as are meaningful."""
    if num_bytes < GB:
        return f"{num_bytes / 10**6:.0f} MB"
    return f"{num_bytes / GB:,.{0 if num_bytes >= 20 * GB else 1}f} GB"


def estimate(run: RunSizes, machine: NodeCapacity) -> Footprint:
    """Estimate what a run needs on nodes of this capacity."""
    sums = [
        ("tokens", "of an episode's last row", row_tokens(run), run.max_sequence_tokens, _FEWER_TOKENS),
        ("host memory", "of a node that trains", host_memory(run), machine.memory_bytes, _LESS_HOST_MEMORY),
        ("GPU memory", "in the update", update_memory(run), machine.gpu_bytes, _LESS_GPU_MEMORY),
        ("disk", "for checkpoints", disk_space(run), machine.disk_bytes, _LESS_DISK),
    ]
    model = f"{run.model_name}, {run.model.num_parameters / GB:.3g} B parameters"
    step = f"{run.rollouts_per_step} episodes on {run.num_desktops} desktops"
    lines, brief = [f"{model}, a step of {step}, computed:"], [f"model        {model}", f"a step       {step}"]
    problems = []
    for name, of, parts, there, remedy in sums:
        if name == "GPU memory" and not run.on_gpus:
            continue
        show = "{:,}".format if name == "tokens" else size
        needed, among = sum(parts.values()), "" if there is None else f" of {show(there)}"
        total = f"{show(needed)}{among}"
        counted = {part: amount for part, amount in parts.items() if amount}
        lines += [f"{name} {of}", *(f"  {part:<58} {show(amount):>8}" for part, amount in counted.items())]
        lines.append(f"  {'together':<58} {show(needed):>8}{among}")
        brief.append(f"{name:<12} {total} at most")
        if there is not None and needed > there:
            sizes = ", ".join(map(str, run.model.sequence_parallel_sizes))
            problems.append(Problem(f"{name}, {total}", remedy.format(sizes=sizes)))
    return Footprint(tuple(lines), tuple(problems), (*brief, *(f"does not fit: {what}" for what, _ in problems)))
