"""Read and check the configuration, then run EasyR1's trainer in this process."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo_verl.errors import ArpoError, ConfigError, MissingDependencyError
from arpo_verl.lib import run_marker
from arpo_verl.versions import EASYR1, another_verl

if TYPE_CHECKING:
    from arpo_verl.easyr1.settings import DoorConfig

HELP = """usage: python -m arpo_verl.easyr1 config=FILE [OPTION=VALUE ...]

Train on desktops with stock EasyR1: with its own trainer, and arpo_verl's episodes, replay and records. Experimental.

config=FILE     a YAML file of EasyR1's options and ours, or a recipe: easyr1/osworld, easyr1/embedded
OPTION=VALUE    overrides an option, as data.rollout_batch_size=16 or replay.enable=false

Our options are gui_agent, environment, replay, data.tasks, run_dir. data.train_files and data.val_files name tasks.
The same command resumes from the last checkpoint. EasyR1 needs its own Python environment; see docs/easyr1.md."""

INSTALL = (
    "install EasyR1 in its own environment, since its package is called `verl` too: git clone "
    "https://github.com/hiyouga/EasyR1, follow its README, and install arpo_verl there"
)
# EasyR1's own start sets these for its workers, which need them.
WORKER_VARIABLES = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "NCCL_DEBUG": "WARN",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False",
    "TOKENIZERS_PARALLELISM": "true",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_LOGGING_LEVEL": "WARN",
}


def main(arguments: Sequence[str], worker: type | None = None) -> int:
    """Train, as `HELP` says. On an `ArpoError` print it in one line and return 2.

    Args:
        worker: class of the workers; None means EasyR1's own, which need GPUs.
    """
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0 if arguments else 2
    try:
        _require_easyr1()
        from arpo_verl.easyr1.settings import read_config

        _train(read_config(arguments), worker)
    except ArpoError as error:
        print(f"arpo_verl.easyr1: {error}", file=sys.stderr)
        return 2
    return 0


def stock_config(door: DoorConfig) -> Any:
    """Return EasyR1's `PPOConfig`, filled as its own start fills it, and checked.

    Raises:
        ConfigError: EasyR1 does not know an option or a value, or one does not work with our options.
        MissingDependencyError: EasyR1 lacks a package.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from arpo_verl.easyr1.settings import check_stock

    try:
        from arpo_verl.easyr1 import stock
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"cannot import EasyR1: {error}; see `arpo-verl doctor`") from error
    try:
        merged = OmegaConf.merge(OmegaConf.structured(stock.PPOConfig()), OmegaConf.create(dict(door.theirs)))
        config: Any = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(f"EasyR1 refuses the configuration: {error}") from error
    check_stock(door, config)  # first: EasyR1 forgets a file that it does not find
    config.deep_post_init()
    return config


def _train(door: DoorConfig, worker: type | None) -> None:
    import ray
    from omegaconf import OmegaConf

    from arpo_verl.desktops.pool.desktop_pool import DesktopPool
    from arpo_verl.desktops.pool.placement import check_cluster
    from arpo_verl.easyr1 import stock
    from arpo_verl.easyr1.trainer import ArpoTrainer, task_loader
    from arpo_verl.records.metrics_files import keep_earlier_metrics
    from arpo_verl.records.run_lock import hold_run
    from arpo_verl.records.starts import note_start
    from arpo_verl.tasks.selection import load_selected_tasks

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    config = stock_config(door)
    model, template = config.worker.actor.model, config.data.override_chat_template
    options = {"trust_remote_code": model.trust_remote_code, "use_fast": True}
    get = (stock.get_tokenizer, stock.get_processor)
    tokenizer, processor = (one(model.tokenizer_path, template, **options) for one in get)
    tasks = task_loader(door, config.data)
    val_tasks = load_selected_tasks(door.val_files, door.tasks) if door.val_files else []
    hold_run(door.run_dir)
    found = config.trainer.find_last_checkpoint and Path(config.trainer.save_checkpoint_path, stock.TRACKER).is_file()
    keep_earlier_metrics(door.run_dir, resumes=bool(config.trainer.load_checkpoint_path or found))
    desktops = {"provider": door.environment.provider, "num_desktops": door.environment.num_desktops}
    ours = {"gui_agent": vars(door.agent), "replay": vars(door.replay), "environment": desktops}
    note_start(door.run_dir, OmegaConf.create({**ours, "data": {"train_files": list(door.train_files)}}))
    print(f"watch it: arpo-verl view {door.run_dir}", flush=True)
    if not ray.is_initialized():
        runtime = dict(door.ray_init.get("runtime_env") or {})
        runtime["env_vars"] = {**run_marker.MARKER, **WORKER_VARIABLES, **(runtime.get("env_vars") or {})}
        ray.init(**{**door.ray_init, "runtime_env": runtime})
    check_cluster(door.environment, ray.nodes())
    pool = DesktopPool.connect(door.environment)  # desktops boot while the model loads
    try:
        roles = {stock.Role.ActorRolloutRef: "global_pool"}
        gpus = [config.trainer.n_gpus_per_node] * config.trainer.nnodes
        trainer = ArpoTrainer(
            door,
            pool,
            val_tasks,
            train_dataloader=tasks,
            config=config,
            tokenizer=tokenizer,
            processor=processor,
            role_worker_mapping={stock.Role.ActorRolloutRef: ray.remote(worker or stock.FSDPWorker)},
            resource_pool_manager=stock.ResourcePoolManager({"global_pool": gpus}, roles),
            ray_worker_group_cls=stock.RayWorkerGroup,
        )
        trainer.init_workers()
        trainer.fit()
    finally:
        pool.close()


def _require_easyr1() -> None:
    """Refuse an environment without stock EasyR1 before anything is imported."""
    if importlib.util.find_spec("verl") is None:
        raise MissingDependencyError(f"EasyR1 is not installed; {INSTALL}")
    if (other := another_verl()) != EASYR1:
        raise MissingDependencyError(f"the package `verl` here is {other or 'stock veRL'}, not EasyR1; {INSTALL}")
