"""What an update takes of one GPU: memory and seconds, beside what `arpo-verl doctor --recipe` computes.

    python benchmarks/gpu_update.py [--recipe NAME ...] [--smoke] [--json [PATH]]

One process is one rank of the recipe's GPUs. It runs veRL's own FSDP2 engine with the recipe's settings on a policy of
the real shape with random weights, and rows of the recipe's length with as many screenshots. The other ranks do not
exist: PyTorch's "fake" process group answers for them with memory of the right size, so that what this rank keeps,
gathers and computes is real, and what goes between GPUs takes no time. A recipe for one GPU has no such group.

For each recipe:

- `measured_gb`, `doctor_gb`: of the GPU's memory in an update, by part and at its peak. `peak` is what PyTorch held at
  once; `reserved` also what its allocator kept, and `outside_pytorch` what CUDA took beside it.
- `longest`, `common`: a row at the recipe's longest, and one with replies of 290 tokens. `score_s` is
  the forward pass for log-probs, `update_s` forward and backward, `pixels_s` what the CPU needs for its pixel values.
- `encoder_forward_s`: of an update's seconds, the image encoder's forward pass. The ranks of a sequence share its
  screenshots; this one has a largest share.
- `without_sharing`: the longest row where each rank of a sequence encodes all screenshots, as veRL does by itself.
- `flops_share`: of the GPU's peak in bf16, by veRL's count of an update's operations.
- `optimizer_s`, `load_s`, `offload_s`: AdamW's step, and weights and optimizer to the GPU and back.
- `step_s`: scoring and updates of a step of common rows on this GPU, from these times.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from event_loop_parts import screenshot
from figures import Arguments, report
from trainer_run import ROOT

from arpo_verl.engines.footprint import TURN_TOKENS, screenshot_tokens, sequence_tokens

RECIPES = ("osworld_full", "gpu_smoke", "osworld_window")
COMMON_REPLY_TOKENS = 290
ROWS = 2
"""Rows of an update that is timed: as many micro-batches."""
SECTIONS = {8: [2, 3, 3], 64: [16, 24, 24]}
"""Rotary pairs of a head given to time, height and width."""


def main() -> None:
    parser = Arguments(__doc__, "a small policy, also without a GPU")
    parser.add_argument("--recipe", nargs="+", default=list(RECIPES), metavar="NAME", help="these instead of all")
    arguments = parser.parse()
    figures: dict[str, Any] = {"gpu": gpu_name(), "torch": torch.__version__}
    for name in arguments.recipe:
        figures[name] = in_process(measure, name, arguments.smoke)
        report(figures, arguments.json)


def gpu_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call it in a process of its own, whose GPU memory is empty before and after."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


# --- The policy and its rows -----------------------------------------------------------------------------------------


def write_policy(folder: Path, model: Any) -> Path:
    """Write config, tokenizer and processor of a policy of this shape. It has no weights.

    Args:
        model: an `arpo_verl.engines.footprint.Model`.
    """
    from policies.build import build_processor, corpus_tokenizer
    from transformers import AutoConfig

    tokenizer = corpus_tokenizer(())
    token = tokenizer.convert_tokens_to_ids
    pairs = model.head_dim // 2
    text = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": 128000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": SECTIONS[pairs]},
        "pad_token_id": token("<|endoftext|>"),
    }
    vision = {
        "depth": model.vision_layers,
        "hidden_size": model.vision_hidden_size,
        "intermediate_size": model.vision_intermediate_size,
        "num_heads": 16 if model.vision_hidden_size >= 1024 else 4,
        "out_hidden_size": model.hidden_size,
        "patch_size": model.patch_size,
        "spatial_merge_size": model.merge_size,
    }
    if model.model_type == "qwen2_5_vl":
        # Each fourth of 32 layers attends within a whole image, the others within windows of 112 pixels.
        fourth = max(1, model.vision_layers // 4)
        vision |= {"window_size": 112, "fullatt_block_indexes": [*range(fourth - 1, model.vision_layers, fourth)]}
    else:
        vision["deepstack_visual_indexes"] = [5, 11, 17] if model.vision_layers > 17 else [0]
        text["rope_parameters"] |= {"mrope_interleaved": True, "rope_theta": 5e6}
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    marks = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    kind = "Qwen2_5_VL" if model.model_type == "qwen2_5_vl" else "Qwen3VL"
    config = AutoConfig.for_model(
        model.model_type,
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=model.tied_embeddings,
        architectures=[f"{kind}ForConditionalGeneration"],
        **dict(zip(names, map(token, marks), strict=True)),
    )
    config.save_pretrained(folder)
    processor = build_processor(tokenizer)
    if model.model_type == "qwen3_vl":
        from transformers import Qwen3VLProcessor, Qwen3VLVideoProcessor

        video = Qwen3VLVideoProcessor()
        processor = Qwen3VLProcessor(processor.image_processor, tokenizer, video, processor.chat_template)
    processor.image_processor.patch_size = model.patch_size
    processor.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def small(model: Any) -> Any:
    """The same family, small enough for any machine."""
    sizes = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 4, "head_dim": 16, "vocab_size": 2048}
    vision = {"vision_hidden_size": 64, "vision_layers": 2, "vision_intermediate_size": 128}
    return replace(model, intermediate_size=128, num_parameters=500_000, **sizes, **vision)


def longest_reply(run: Any) -> int:
    """Most tokens of a reply with which all screenshots and replies of a row fit into it.

    Args:
        run: a `RunSizes`.
    """
    left = run.max_sequence_tokens - sequence_tokens(run, run.max_screenshots, 0)
    return min(run.max_reply_tokens, left // run.max_replies)


def make_row(inputs: Any, run: Any, reply_tokens: int, number: int) -> dict[str, torch.Tensor | dict[str, Any]]:
    """A row as the rollout workers write it: its prompt, then screenshots and replies in turn.

    Args:
        inputs: a `ModelInputs`.
        run: a `RunSizes`.
        reply_tokens: of each reply.
        number: another number gives another row, with other screenshots.
    """
    draw = torch.Generator().manual_seed(number)
    token = inputs.tokenizer.convert_tokens_to_ids
    words = len(inputs.tokenizer) - 64  # what comes last are marks

    def text(count: int) -> list[int]:
        return torch.randint(64, words, (count,), generator=draw).tolist()

    image = [token("<|vision_start|>"), *[token("<|image_pad|>")] * screenshot_tokens(run.model, run.image)]
    ids, mask = text(run.instruction_tokens), [0] * run.instruction_tokens
    # A row of a window has the replies of all turns, and screenshots in the last ones.
    for turn in range(run.max_replies):
        if turn >= run.max_replies - run.max_screenshots:
            ids += [*image, token("<|vision_end|>"), *text(TURN_TOKENS - 2)]
        mask += [0] * (len(ids) - len(mask))
        ids += text(reply_tokens)
        mask += [1] * reply_tokens
    ids, mask = ids[: run.max_sequence_tokens], mask[: run.max_sequence_tokens]
    shots = [screenshot(*run.screen, f"{number} {turn}") for turn in range(run.max_screenshots)]
    input_ids = torch.tensor(ids)
    shown, position_ids = inputs.compute(shots, input_ids)
    begun = mask.index(1)
    return {
        "input_ids": input_ids,
        "position_ids": position_ids,
        "loss_mask": torch.tensor(mask),
        "response_mask": torch.tensor(mask[begun:]),
        "prompts": input_ids[:begun],
        "responses": input_ids[begun:],
        "multi_modal_inputs": shown,
    }


def make_batch(rows: list[dict[str, Any]], settings: dict[str, Any]) -> Any:
    """What veRL's worker gives its engine."""
    from verl.utils import tensordict_utils as tu

    tensors = {
        name: tu.nested_tensor_from_tensor_list([row[name] for row in rows]) for name in rows[0] if "multi" not in name
    }
    for name in ("old_log_probs", "advantages"):
        drawn = [torch.randn(len(row["responses"])) for row in rows]
        tensors[name] = tu.nested_tensor_from_tensor_list(drawn)
    shown = {"multi_modal_inputs": [row["multi_modal_inputs"] for row in rows]}
    return tu.get_tensordict(tensors | shown, settings | {"global_batch_size": len(rows)})


# --- One rank ------------------------------------------------------------------------------------------------------


def start_group(world: int) -> None:
    """Be rank 0 of so many. Of several, the others are PyTorch's fakes."""
    import os

    os.environ.update(RANK="0", WORLD_SIZE=str(world), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    if world == 1:
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=world, store=FakeStore())


@contextlib.contextmanager
def exchanges_within(*modules: Any) -> Iterator[None]:
    """Ulysses' exchanges between the ranks of a sequence, within this one: it receives what it sends. So attention sees
    the whole sequence with this rank's share of heads, as it does on GPUs. Fakes would leave memory as it was.

    Args:
        modules: veRL's, whose attention collects the ranks' position ids, and ours, which collects their features.
    """

    class Collectives:
        """`torch.distributed`, with other exchanges."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch.distributed, name)

        @staticmethod
        def all_gather(gathered: list[torch.Tensor], mine: torch.Tensor, **_: Any) -> None:
            for rank, each in enumerate(gathered):
                each.copy_(mine + rank * mine.shape[-1])

        @staticmethod
        def all_gather_into_tensor(gathered: torch.Tensor, mine: torch.Tensor, **_: Any) -> None:
            gathered.view(-1, *mine.shape).copy_(mine)

        @staticmethod
        def reduce_scatter_tensor(mine: torch.Tensor, summands: torch.Tensor, **_: Any) -> None:
            mine.copy_(summands[: len(mine)])

    def all_to_all(received: list[torch.Tensor], sent: list[torch.Tensor], **_: Any) -> None:
        for one, other in zip(received, sent, strict=True):
            one.copy_(other)

    upstream = torch.distributed.all_to_all
    torch.distributed.all_to_all = all_to_all
    for module in modules:
        module.dist = Collectives()
    try:
        yield
    finally:
        torch.distributed.all_to_all = upstream
        for module in modules:
            module.dist = torch.distributed


@contextlib.contextmanager
def each_encodes_all(visual: Any) -> Iterator[None]:
    """The image encoder as it is without our patch."""
    shared = vars(visual).pop("forward")
    try:
        yield
    finally:
        visual.forward = shared


def build_engine(config: Any, actor: Any, device: str) -> Any:
    """veRL's engine with random weights, which it would load from files otherwise."""
    import transformers
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.fsdp import transformer_impl as upstream

    class Engine(upstream.FSDPEngineWithLMHead):  # type: ignore[misc,name-defined]
        def optimizer_step(self) -> float:
            # Fakes reduce no gradients: their memory holds anything.
            if torch.distributed.get_world_size() > 1:
                for parameter in self.module.parameters():
                    if parameter.grad is not None:
                        parameter.grad.to_local().normal_(std=1e-3)
            begun = time.perf_counter()
            norm = float(super().optimizer_step())
            synchronize()
            self.optimizer_s = time.perf_counter() - begun
            return norm

    def draw(module: torch.nn.Module, *_: Any) -> None:
        if tied:
            return
        module.to_empty(device=device)
        for parameter in module.parameters():
            torch.nn.init.normal_(getattr(parameter, "_local_tensor", parameter).data, std=0.02)
        for name, buffer in module.named_buffers():
            if "inv_freq" in name:
                buffer.copy_(10_000 ** -torch.linspace(0, 1, len(buffer)))

    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    engine = Engine(model, actor.engine, actor.optim, actor.checkpoint)
    kind = getattr(transformers, model.hf_config.architectures[0])
    tied = model.hf_config.tie_word_embeddings

    def on_meta(*_: Any, config: Any, **given: Any) -> Any:
        # A shared matrix becomes two where memory is made later.
        with torch.device(device if tied else "meta"):
            return kind._from_config(config, dtype=given.get("torch_dtype", given.get("dtype")))

    loading = upstream.fsdp2_load_full_state_dict, kind.from_pretrained
    upstream.fsdp2_load_full_state_dict, kind.from_pretrained = draw, on_meta
    try:
        engine.initialize()
    finally:
        upstream.fsdp2_load_full_state_dict, kind.from_pretrained = loading
    return engine


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(function: Callable[..., Any], *arguments: Any, **named: Any) -> float:
    """Seconds that it took, with what it began on the GPU."""
    synchronize()
    begun = time.perf_counter()
    function(*arguments, **named)
    synchronize()
    return time.perf_counter() - begun


def allocated() -> float:
    return torch.cuda.memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0


def measure(name: str, smoke: bool) -> dict[str, Any]:
    """Measure one recipe, in a process that has done nothing else."""
    import arpo_verl.plugin  # noqa: F401  # as in a training process
    from arpo_verl.engines.footprint import KNOWN_MODELS, longest_sequence
    from arpo_verl.plugin.model_inputs import ModelInputs
    from arpo_verl.plugin.recipe.footprint import read_run

    folder = Path(tempfile.mkdtemp())
    config = compose(name)
    known = KNOWN_MODELS[config.actor_rollout_ref.model.path]
    model = small(known) if smoke else known
    config.actor_rollout_ref.model.path = str(write_policy(folder, model))
    run = read_run(config, model)
    if smoke:
        run = replace(run, max_screenshots=2, max_replies=2, max_reply_tokens=32)
    from verl.utils.config import omega_conf_to_dataclass

    start_group(run.num_gpus)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    from verl.utils.device import get_device_name

    device = get_device_name()
    inputs = ModelInputs(*load_processor(folder), config.data.get("mm_processor_kwargs"))
    rows = {
        length: [make_row(inputs, run, tokens, number) for number in range(ROWS)]
        for length, tokens in (
            ("longest", longest_reply(run)),
            ("common", min(COMMON_REPLY_TOKENS, longest_reply(run))),
        )
    }
    print(f"{name}: {run.num_gpus} GPUs, {longest_sequence(run)} tokens, rows of", flush=True)
    print({length: len(made[0]["input_ids"]) for length, made in rows.items()}, flush=True)
    engine = build_engine(config, actor, device)
    return figures_of(engine, actor, config, run, rows)


def load_processor(folder: Path) -> tuple[Any, Any]:
    from verl.utils import hf_processor, hf_tokenizer

    return hf_tokenizer(str(folder)), hf_processor(str(folder))


def compose(name: str) -> Any:
    """The recipe as the trainer composes it; its options may be changed."""
    from omegaconf import OmegaConf

    from arpo_verl.tools.cli.composing import compose_recipe

    overrides = ["data.train_files=none", "data.val_files=none"]
    config = compose_recipe(ROOT / "recipes" / f"{name}.yaml", overrides)
    OmegaConf.set_struct(config, False)
    return config


def figures_of(engine: Any, actor: Any, config: Any, run: Any, rows: dict[str, list[Any]]) -> dict[str, Any]:
    """Run scorings and updates, and say what they took."""
    from verl.models.transformers import qwen2_vl
    from verl.utils.dataset.dataset_utils import DatasetPadMode
    from verl.utils.device import get_device_name, set_expandable_segments
    from verl.workers.utils.losses import ppo_loss

    from arpo_verl.engines.footprint import update_memory
    from arpo_verl.plugin import shared_encoder

    loss, device = partial(ppo_loss, config=actor), get_device_name()
    settings = {
        "use_remove_padding": engine.use_remove_padding,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": 1,
        "use_fused_kernels": config.actor_rollout_ref.model.use_fused_kernels,
        "temperature": config.actor_rollout_ref.rollout.temperature,
        "pad_mode": DatasetPadMode.NO_PADDING,
    }
    scoring = settings | {"calculate_entropy": True}
    updating = settings | {"calculate_entropy": actor.calculate_entropy or actor.entropy_coeff != 0}
    set_expandable_segments(True)  # as veRL's workers do while they train
    figures: dict[str, Any] = {}
    memory: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        if run.sequence_parallel_size > 1:
            stack.enter_context(exchanges_within(qwen2_vl, shared_encoder))
        before = allocated()
        engine.to(device, model=True, optimizer=False, grad=False)
        memory["weights"] = allocated() - before
        engine.to("cpu", model=True, optimizer=False, grad=False)
        # Once before it counts: the first update makes the optimizer's state, and the first scoring compiles.
        with engine.train_mode():
            engine.train_batch(make_batch(rows["common"][:1], updating), loss)
            memory["weights, gradients and optimizer"] = allocated() - before
        with engine.eval_mode():
            engine.infer_batch(make_batch(rows["common"][:1], scoring))
        of_rows = partial(figures_of_rows, engine, loss=loss, scoring=scoring, updating=updating)
        for length, made in rows.items():
            figures[length] = of_rows(made, memory if length == "longest" else {})
            figures[length]["flops_share"] = flops_share(engine, run, made[0], figures[length]["update_s"])
            print(json.dumps({length: figures[length]}), flush=True)
            if length == "longest":
                memory |= {"peak": peak(), **outside()}
        if run.sequence_parallel_size > 1:
            with each_encodes_all(engine.module.model.visual):
                figures["without_sharing"] = {"longest": of_rows(rows["longest"], {})}
        figures["load_s"] = timed(engine.to, device, model=True, optimizer=True, grad=True)
        figures["offload_s"] = timed(engine.to, "cpu", model=True, optimizer=True, grad=True)
    ranks = run.num_gpus // run.sequence_parallel_size
    figures["rows_a_step"] = -(-run.rollouts_per_step * run.rows_per_episode // ranks)
    common, updates = (
        figures["common"],
        config.data.train_batch_size // config.actor_rollout_ref.actor.ppo_mini_batch_size,
    )
    of_rows = figures["rows_a_step"] * (common["score_s"] + common["update_s"])
    figures["step_s"] = of_rows + updates * common["optimizer_s"]
    doctor = update_memory(run)
    figures["measured_gb"] = memory
    figures["doctor_gb"] = {part: size / 1e9 for part, size in doctor.items()} | {
        "together": sum(doctor.values()) / 1e9
    }
    return figures


def figures_of_rows(
    engine: Any, rows: list[Any], memory: dict[str, float], loss: Any, scoring: dict[str, Any], updating: dict[str, Any]
) -> dict[str, Any]:
    """Score these rows and update by them. What the first of them holds is noted in `memory`."""
    found: dict[str, Any] = {"tokens": len(rows[0]["input_ids"])}
    lazy = [row["multi_modal_inputs"]["pixel_values"] for row in rows]
    found["pixels_s"] = timed(lambda: [torch.cat([one]) for one in lazy]) / len(rows)
    reset_peak()
    with engine.eval_mode(), watched(engine.module, memory, "in scoring, "):
        found["score_s"] = timed(engine.infer_batch, make_batch(rows, scoring)) / len(rows)
    found["score_peak_gb"] = peak()
    reset_peak()
    with engine.train_mode(), watched(engine.module, memory, "") as encoder_s:
        took = timed(engine.train_batch, make_batch(rows, updating), loss)
    found["update_s"] = (took - engine.optimizer_s) / len(rows)
    found["encoder_forward_s"] = statistics.median(encoder_s)
    found["optimizer_s"] = engine.optimizer_s
    found["update_peak_gb"] = peak()
    return found


def flops_share(engine: Any, run: Any, row: dict[str, Any], seconds: float) -> float:
    """Share of the GPU's bf16 operations that veRL counts for an update of the row, which some ranks share."""
    from verl.utils.flops_counter import FlopsCounter

    patches = [run.model.merge_size**2 * screenshot_tokens(run.model, run.image)] * run.max_screenshots
    counter = FlopsCounter(engine.model_config.hf_config)
    flops, promised = counter.estimate_flops([len(row["input_ids"])], seconds, images_seqlens=patches)
    return float(flops / promised / run.sequence_parallel_size)


@contextlib.contextmanager
def watched(module: Any, memory: dict[str, float], words: str) -> Iterator[list[float]]:
    """Note in `memory` what is held behind each part of the first row's forward pass, in GB.

    Yields:
        seconds of the image encoder's forward passes; in an update gradient checkpointing makes the layers', not it,
        a second time.
    """
    seconds: list[float] = []
    begun = [0.0]

    def begin(*_: Any) -> None:
        synchronize()
        begun[0] = time.perf_counter()

    def note(part: str, *_: Any) -> None:
        synchronize()
        if part == "the image encoder":
            seconds.append(time.perf_counter() - begun[0])
        memory.setdefault(f"{words}behind {part}", allocated())
        memory.setdefault(f"{words}peak until {part}", peak())

    parts = {"the image encoder": module.model.visual, "the language model": module.model.language_model}
    parts["the logits"] = module.lm_head
    hooks = [parts["the image encoder"].register_forward_pre_hook(begin)]
    hooks += [each.register_forward_hook(partial(note, part)) for part, each in parts.items()]
    try:
        yield seconds
    finally:
        for hook in hooks:
            hook.remove()


def reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak() -> float:
    return torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else 0.0


def outside() -> dict[str, float]:
    """What PyTorch's allocator holds, and what CUDA holds beside it."""
    if not torch.cuda.is_available():
        return {}
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    return {"reserved": torch.cuda.max_memory_reserved() / 1e9, "outside_pytorch": (total - free - reserved) / 1e9}


if __name__ == "__main__":
    main()
