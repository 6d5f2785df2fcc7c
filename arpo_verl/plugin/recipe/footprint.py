"""Collect from a composed recipe and this machine what `arpo_verl/footprint.py` needs for its estimate."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from arpo_verl.config import build_config
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.providers import PROVIDERS, QEMU
from arpo_verl.errors import ArpoError
from arpo_verl.footprint import (
    BF16,
    FP32,
    GB,
    KNOWN_MODELS,
    MANAGER,
    Footprint,
    Model,
    NodeCapacity,
    RunSizes,
    VllmSettings,
    estimate,
)
from arpo_verl.plugin.settings import plain_section
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.vision import ImageGeometry
from arpo_verl.tasks.selection import TaskSelection, load_selected_tasks
from arpo_verl.types import Task
from arpo_verl.untrusted import MOST_JSON_BYTES, parse_json, read_text

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
        return Model.of_config(config, _num_parameters(folder, config) or (known.num_parameters if known else 0))
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError):  # another format, or damaged
        return known


def _num_parameters(folder: Path, config: Mapping[str, Any]) -> int:
    """Estimate the number of parameters from the size and precision of the weights' files."""
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) // (FP32 if "32" in dtype else BF16)


def read_run(config: DictConfig, model: Model) -> RunSizes:
    """Read from the recipe what the estimate needs.

    Raises:
        ConfigError: a section has a wrong value.
    """
    agent = build_config(GuiAgentConfig, "gui_agent", plain_section("gui_agent", config.gui_agent))
    environment = build_config(EnvironmentConfig, "environment", plain_section("environment", config.environment))
    replay = build_config(ReplayConfig, "replay", plain_section("replay", config.replay))
    trainer, rollout, actor = config.trainer, config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    mode = trainer.v1.trainer_mode
    updates = trainer.v1.separate_async.parameter_sync_step if mode == "separate_async" else 1
    ahead = 0 if mode == "sync" else math.ceil(trainer.v1[mode].num_warmup_batches)
    image = _geometry(config, model).image_size(environment.screen_size)
    on_gpus = trainer.device != "cpu"
    instruction = "x" * _instruction_characters(config)
    messages = agent.family.opening(instruction, agent.language, ())
    characters = sum(len(part.get("text", "")) for message in messages for part in message["content"])
    return RunSizes(
        recipe=trainer.experiment_name,
        model_name=str(config.actor_rollout_ref.model.path),
        model=model,
        image=image,
        screen=environment.screen_size,
        carries_pixels=rollout.agent.get("agent_loop_manager_class") != MANAGER,
        max_screenshots=agent.row_screenshots,
        max_replies=agent.max_turns,
        rows_per_episode=agent.max_rows,
        max_reply_tokens=agent.max_reply_tokens,
        instruction_tokens=characters // CHARACTERS_PER_TOKEN,
        max_sequence_tokens=config.data.max_prompt_length + config.data.max_response_length,
        tasks_per_step=config.data.train_batch_size,
        rollouts_per_task=rollout.n,
        tasks_per_update=actor.ppo_mini_batch_size,
        tasks_per_fetch=config.data.train_batch_size // updates,
        batches_in_queue=1 + ahead,
        episodes_validated=_episodes_validated(config),
        is_async=mode != "sync",
        num_nodes=trainer.nnodes,
        num_rollout_nodes=rollout.nnodes if mode == "separate_async" else 0,
        gpus_per_node=trainer.n_gpus_per_node,
        on_gpus=on_gpus,
        sequence_parallel_size=sequence_parallel_size(config),
        micro_batch_size=actor.ppo_micro_batch_size_per_gpu or 1,
        offloads_weights=actor.fsdp_config.param_offload,
        offloads_optimizer=actor.fsdp_config.optimizer_offload,
        weight_copies=weight_copies(config) if on_gpus else 0,
        rollout_workers=rollout.agent.num_workers,
        num_desktops=environment.num_desktops,
        desktop_bytes=_desktop_bytes(environment),
        successes_stored=_num_tasks(config) * replay.capacity_per_task if replay.enable else 0,
        replays_ahead=replay.prefetch if replay.enable else 0,
        checkpoints_kept=trainer.max_actor_ckpt_to_keep,
        engine=_engine(config) if rollout.name == "vllm" else None,
        reference_split=sequence_parallel_size(config, "ref") if has_reference(config) else 0,
    )


def sequence_parallel_size(config: DictConfig, role: str = "actor") -> int:
    """Return how many GPUs a sequence is split over (Ulysses). Of veRL's two options the older wins if it is set.

    Args:
        role: `actor`, or `ref` for the reference model.
    """
    section = config.actor_rollout_ref[role]
    older, newer = section.ulysses_sequence_parallel_size, section.fsdp_config.ulysses_sequence_parallel_size
    return int(older if (older or 1) > 1 else newer or 1)


def has_reference(config: DictConfig) -> bool:
    """Return whether a KL term needs a reference model. With LoRA it is the policy without its adapter."""
    model = config.actor_rollout_ref.model
    has_adapter = model.get("lora_rank", 0) > 0 or (model.get("lora") or {}).get("rank", 0) > 0
    has_term = config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss
    return bool(has_term and not has_adapter and model.get("lora_adapter_path") is None)


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


def longest_instruction(config: DictConfig) -> str:
    """Return the longest instruction of all tasks; empty if none can be read."""
    tasks = (task for name in ("data.train_files", "data.val_files") for task in _tasks(config, name))
    return max((task.instruction for task in tasks), key=len, default="")


def num_training_rows(config: DictConfig) -> int | None:
    """Count the rows of the training data, with tasks that an epoch repeats; None if the tasks cannot be read."""
    data = config.data
    rows = len(_tasks(config, "data.train_files")) * (OmegaConf.select(data, "tasks.repeat") or 1)
    limit = data.get("train_max_samples", -1)
    return (min(rows, limit) if limit > 0 else rows) or None


def steps_of_epochs(config: DictConfig) -> int | None:
    """Count the steps of all epochs, as `PPOTrainer._init_dataloader` does; None if the tasks cannot be read."""
    rows = num_training_rows(config)
    return None if rows is None else int(rows // config.data.train_batch_size * config.trainer.total_epochs)


def training_steps(config: DictConfig) -> int | None:
    """Count the steps that the trainer makes with a composed recipe; None if its tasks cannot be read."""
    steps, most = steps_of_epochs(config), config.trainer.total_training_steps
    known = [int(number) for number in (steps, most) if number is not None]
    return min(known, default=None)


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
    end = "after the last step" if steps is None else f"after step {steps}"
    return (
        [end] if steps is not None and every >= steps else ["every step" if every == 1 else f"every {every} steps", end]
    )


def read_machine(config: DictConfig) -> NodeCapacity:
    """Return this machine, if it could be a node that trains the recipe; otherwise only the assumed GPU."""
    on_gpus = config.trainer.device != "cpu"
    gpu_bytes = _gpu_bytes() if on_gpus else None
    if on_gpus and gpu_bytes is None:
        return NodeCapacity(gpu_bytes=ASSUMED_GPU_BYTES)
    return NodeCapacity(_memory_bytes(), gpu_bytes, _free_bytes(Path(config.run_dir).absolute()))


def _free_bytes(folder: Path) -> int:
    """Return the free bytes of the disk that a folder is on, or will be on."""
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def _memory_bytes() -> int | None:
    try:
        total = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text("ascii"), re.M)
    except OSError:
        return None
    return int(total[1]) * 1024 if total else None


def _gpu_bytes() -> int | None:
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        sizes = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return min(int(size) for size in sizes) * 2**20 if sizes and all(size.isdigit() for size in sizes) else None


def _tasks(config: DictConfig, files: str) -> list[Task]:
    """Return the recipe's tasks; none if they cannot be read."""
    try:
        selection = build_config(
            TaskSelection, "data.tasks", plain_section("data.tasks", config.data.get("tasks") or {})
        )
        return load_selected_tasks(OmegaConf.select(config, files), selection)
    except ArpoError:
        return []


def _num_tasks(config: DictConfig) -> int:
    """Count the distinct training tasks; if they cannot be read, assume the paper's number."""
    return len({task.task_id for task in _tasks(config, "data.train_files")}) or PAPERS_TASKS


def _instruction_characters(config: DictConfig) -> int:
    """Return the average length of the recipe's instructions."""
    tasks = _tasks(config, "data.train_files")
    return sum(len(task.instruction) for task in tasks) // len(tasks) if tasks else INSTRUCTION_CHARACTERS


def _episodes_validated(config: DictConfig) -> int:
    """Count the episodes that a validation plays at once. If the tasks cannot be read, assume as many as a step has."""
    data, trainer = config.data, config.trainer
    if trainer.test_freq <= 0 and not trainer.val_before_train:
        return 0
    num_tasks = len(_tasks(config, "data.val_files")) or data.train_batch_size
    limits = (data.val_max_samples, data.val_batch_size)
    num_tasks = min([num_tasks, *(limit for limit in limits if limit is not None and limit > 0)])
    return int(num_tasks * config.actor_rollout_ref.rollout.val_kwargs.n)


def _geometry(config: DictConfig, model: Model) -> ImageGeometry:
    """Return how images are resized: by the processor's settings if they are here, else by Transformers' defaults."""
    # The one that needs no torch, for a machine that only reads recipes.
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    settings = _processor_settings(model_folder(str(config.actor_rollout_ref.model.path)))
    limits = {name: settings[name] for name in ("min_pixels", "max_pixels") if settings.get(name) is not None}
    # A copy, since Transformers writes min_pixels and max_pixels into `size`, and would change its own defaults.
    limits["size"] = dict(settings.get("size") or Qwen2VLImageProcessorPil.size)
    processor = Qwen2VLImageProcessorPil(patch_size=model.patch_size, merge_size=model.merge_size, **limits)
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


def _engine(config: DictConfig) -> VllmSettings:
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    cache_gib = (rollout.engine_kwargs.get("vllm") or {}).get("mm_processor_cache_gb")
    apart = trainer.v1.trainer_mode == "separate_async"
    generating = rollout.nnodes * rollout.n_gpus_per_node if apart else trainer.nnodes * trainer.n_gpus_per_node
    return VllmSettings(
        tensor_parallel_size=rollout.tensor_model_parallel_size,
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        max_model_len=rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length,
        image_cache_bytes=int(float(VLLM_CACHE_GIB if cache_gib is None else cache_gib) * 2**30),
        num_gpus=generating,
        gpus_of_training_node=trainer.n_gpus_per_node if config.actor_rollout_ref.hybrid_engine else 0,
    )
