"""Collect from a composed recipe and this machine what `arpo_verl/engines/footprint.py` needs for its estimate."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omegaconf import DictConfig

from arpo_verl.agent.rollout.vision import ImageGeometry
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.providers import PROVIDERS, QEMU
from arpo_verl.engines.footprint import (
    ADAM_BYTES,
    BF16,
    FP32,
    GB,
    KNOWN_MODELS,
    Footprint,
    Model,
    NodeCapacity,
    RunSizes,
    estimate,
    training_state_bytes,
)
from arpo_verl.lib.untrusted import MOST_JSON_BYTES, parse_json, read_text
from arpo_verl.plugin.recipe.options import longest_instruction, tasks_of, training_steps
from arpo_verl.plugin.settings import plain_section
from arpo_verl.plugin.trainer_state import TrainerState, has_reference, sequence_parallel_size

# Assumed if this machine has no GPU: the smallest that trains a 7B policy with histories of 64K tokens.
ASSUMED_GPU_BYTES = 80 * GB
# Characters of an instruction of OSWorld, used if we cannot read the recipe's tasks; English characters in a token.
INSTRUCTION_CHARACTERS, CHARACTERS_PER_TOKEN = 200, 4
# Number of training tasks, used if we cannot read the recipe's.
PAPERS_TASKS = 128
# Measured: docs/desktop-pool.md.
EMBEDDED_DESKTOP_BYTES, WORKER_BYTES = 64 * 10**6, 219 * 10**6
# QEMU's own memory, beside the memory of its machine.
QEMU_BYTES = 750 * 10**6
# Transformers' limits of a resized image, in pixels (`Qwen2VLImageProcessorPil.size`).
DEFAULT_SIZE = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}
VLLM_CACHE_GIB = 4  # vLLM's default of mm_processor_cache_gb


def model_folder(path: str) -> Path | None:
    """Return the folder of a policy's files: `path` itself or its place in the model hub's cache; None: not here."""
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file():
        return folder
    try:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(path, "config.json")
    except (ImportError, ValueError):  # HFValidationError is a ValueError
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def model_shape(path: str) -> Model | None:
    """Return the policy's shape, from its files or from its known name; None if we have neither."""
    folder = model_folder(path)
    known = KNOWN_MODELS.get(path)
    if folder is None:
        return known
    try:
        config = parse_json(read_text(folder / "config.json", MOST_JSON_BYTES))
        value_bytes = FP32 if "32" in str(config.get("dtype") or config.get("torch_dtype")) else BF16
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        return Model.of_config(config, weights // value_bytes or (known.num_parameters if known else 0))
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError):  # another format, or damaged
        return known


def read_run(config: DictConfig, model: Model) -> RunSizes:
    """Read from the recipe what the estimate needs.

    Raises:
        ConfigError: a section has a wrong value.
    """
    state = TrainerState(config)
    agent, replay, environment = state.agent, state.replay, state.environment or EnvironmentConfig()
    data, trainer, actor = config.data, config.trainer, config.actor_rollout_ref.actor
    rollout, mode = config.actor_rollout_ref.rollout, trainer.v1.trainer_mode
    ahead = 0 if mode == "sync" else math.ceil(trainer.v1[mode].num_warmup_batches)
    updates = trainer.v1.separate_async.parameter_sync_step if mode == "separate_async" else 1
    messages = agent.family.opening(longest_instruction(config) or "x" * INSTRUCTION_CHARACTERS, agent.language, ())
    characters = sum(len(part.get("text", "")) for message in messages for part in message["content"])
    rollouts = data.train_batch_size * rollout.n
    added = state.replay_method.num_added if replay.enable else 0
    num_tasks = len({task.task_id for task in tasks_of(config, "data.train_files")}) or PAPERS_TASKS
    return RunSizes(
        model_name=str(config.actor_rollout_ref.model.path),
        model=model,
        image=_geometry(config, model).image_size(environment.screen_size),
        screen=environment.screen_size,
        max_screenshots=agent.row_screenshots,
        max_replies=agent.max_turns,
        rows_per_episode=agent.max_rows,
        max_reply_tokens=agent.max_reply_tokens,
        instruction_tokens=characters // CHARACTERS_PER_TOKEN,
        max_sequence_tokens=data.max_prompt_length + data.max_response_length,
        rollouts_per_step=rollouts,
        rollouts_fetched=data.train_batch_size // updates * (rollout.n + added),
        rollouts_in_queue=(1 + ahead) * rollouts,
        sends_pixels=rollout.agent.get("agent_loop_manager_class") is None,
        saves_queue=mode != "sync",
        num_nodes=trainer.nnodes,
        num_rollout_nodes=rollout.nnodes if mode == "separate_async" else 0,
        gpus_per_node=trainer.n_gpus_per_node,
        on_gpus=trainer.device != "cpu",
        sequence_parallel_size=sequence_parallel_size(config),
        micro_batch_size=actor.ppo_micro_batch_size_per_gpu or 1,
        host_bytes_a_parameter=_host_bytes_a_parameter(config),
        image_cache_bytes=_image_cache_bytes(config),
        num_desktops=environment.num_desktops,
        desktop_bytes=_desktop_bytes(environment),
        successes_stored=num_tasks * replay.capacity_per_task if replay.enable else 0,
        checkpoints_kept=trainer.max_actor_ckpt_to_keep,
    )


def _host_bytes_a_parameter(config: DictConfig) -> int:
    """Return the bytes of host memory for each parameter: weights, gradients and optimizer that are there, and copies.

    FSDP keeps a reference model there, whatever the recipe offloads: `_build_fsdp_module` of `transformer_impl.py`.
    """
    actor, reference = config.actor_rollout_ref.actor.fsdp_config, FP32 * has_reference(config)
    if config.trainer.device == "cpu":
        return training_state_bytes(1) + reference
    offloaded = FP32 * actor.param_offload + ADAM_BYTES * actor.optimizer_offload
    return int(offloaded + FP32 * weight_copies(config) + reference)


def weight_copies(config: DictConfig) -> int:
    """Return how many copies of the weights `PPOTrainerSeparateAsync._compute_old_log_prob` saves: at a step's first
    update those that the step began with, at later updates also the newest."""
    if config.trainer.v1.trainer_mode != "separate_async":
        return 0
    return 2 if config.trainer.v1.separate_async.parameter_sync_step > 1 else 1


def estimate_recipe(config: DictConfig, **known: int | None) -> Footprint | None:
    """Estimate what a composed recipe needs on nodes like this machine; None if the policy's shape is unknown, or its
    weights are not here.

    Args:
        config: the recipe.
        known: fields of `NodeCapacity` to use instead of this machine's; None: use this machine's.

    Raises:
        ConfigError: a section has a wrong value.
    """
    model = model_shape(str(config.actor_rollout_ref.model.path))
    if model is None or model.num_parameters == 0:
        return None
    known = {name: value for name, value in known.items() if value is not None}
    return estimate(read_run(config, model), replace(read_machine(config), **known))


def describe_schedule(config: DictConfig) -> str:
    """Describe in one line how many steps a run has, and when it saves and validates."""
    trainer, steps = config.trainer, training_steps(config)
    if trainer.val_only:
        return "steps        none: it validates and ends"
    tests = _times(trainer.test_freq, steps)
    if trainer.val_before_train:
        tests = ["before step 1", *tests]
    saved, validated = (", ".join(times) or "never" for times in (_times(trainer.save_freq, steps), tests))
    return f"steps        {'unknown' if steps is None else steps}; saves: {saved}; validates: {validated}"


def _times(every: int, steps: int | None) -> list[str]:
    """Describe when the trainer does something that it does every `every` steps and at the end; 0 or less: never."""
    if every <= 0:
        return []
    often = "every step" if every == 1 else f"every {every} steps"
    end = "after the last step" if steps is None else f"after step {steps}"
    return [end] if steps is not None and every >= steps else [often, end]


def read_machine(config: DictConfig) -> NodeCapacity:
    """Return this machine, if it could be a node that trains the recipe; otherwise only the assumed GPU."""
    gpu_bytes = None if config.trainer.device == "cpu" else _gpu_bytes()
    if config.trainer.device != "cpu" and gpu_bytes is None:
        return NodeCapacity(gpu_bytes=ASSUMED_GPU_BYTES)
    folder = Path(config.run_dir).absolute()
    disk = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists()))
    return NodeCapacity(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), gpu_bytes, disk.free)


def _gpu_bytes() -> int | None:
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        sizes = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return min(int(size) for size in sizes) * 2**20 if sizes and all(size.isdigit() for size in sizes) else None


def _geometry(config: DictConfig, model: Model) -> ImageGeometry:
    """Return how images are resized: by the processor's settings if they are here, else by Transformers' defaults."""
    settings = _processor_settings(model_folder(str(config.actor_rollout_ref.model.path)))
    size = {"shortest_edge": settings.get("min_pixels"), "longest_edge": settings.get("max_pixels")}
    size = DEFAULT_SIZE | (settings.get("size") or {}) | {name: edge for name, edge in size.items() if edge is not None}
    processor = SimpleNamespace(patch_size=model.patch_size, merge_size=model.merge_size, size=size)
    kwargs = plain_section("data.mm_processor_kwargs", config.data.get("mm_processor_kwargs") or {})
    return ImageGeometry.from_processor(SimpleNamespace(image_processor=processor), kwargs)


def _processor_settings(folder: Path | None) -> dict[str, Any]:
    """Read the image processor's settings from the file that Transformers 5 writes, or from the older one."""
    for name in ("processor_config.json", "preprocessor_config.json") if folder else ():
        file = Path(folder or "", name)
        if file.is_file():
            settings: dict[str, Any] = parse_json(read_text(file, MOST_JSON_BYTES))
            return settings.get("image_processor") or settings
    return {}


def _desktop_bytes(environment: EnvironmentConfig) -> int:
    """Return the host memory of a desktop, with its share of the process that drives it."""
    worker = WORKER_BYTES // environment.desktops_per_worker
    provider = PROVIDERS.get(environment.provider)
    if provider is None:
        return worker + EMBEDDED_DESKTOP_BYTES
    if environment.provider == QEMU:  # clones share memory, but we do not know how much
        return worker + QEMU_BYTES + environment.vm.memory_mib * 2**20
    if environment.provider not in ("docker", "vmware", "virtualbox"):
        return worker  # the machine runs in a cloud
    ram = str((environment.provider_options.get("environment") or {}).get("RAM_SIZE", "4G"))
    gib = re.fullmatch(r"(\d+)\s*G(?:B|iB)?", ram, re.I)
    return worker + QEMU_BYTES + (int(gib[1]) if gib else 4) * 2**30


def _image_cache_bytes(config: DictConfig) -> int:
    """Return the bytes of vLLM's caches of processed images on a training node: one for each engine there."""
    section = config.actor_rollout_ref
    if section.rollout.name != "vllm" or not section.hybrid_engine:
        return 0
    cache_gib = (section.rollout.engine_kwargs.get("vllm") or {}).get("mm_processor_cache_gb")
    engines = config.trainer.n_gpus_per_node // section.rollout.tensor_model_parallel_size
    return int(engines * float(VLLM_CACHE_GIB if cache_gib is None else cache_gib) * 2**30)
