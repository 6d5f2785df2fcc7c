"""The configuration: EasyR1's own, with our sections beside it. EasyR1 refuses keys that it does not know, so ours are
taken out before it sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arpo_verl.config import Problems, build_config, require
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.models.family import FULL
from arpo_verl.records.layout import CHECKPOINTS, POOL_FILE, TRAJECTORIES
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.tasks.selection import UNIFORM, TaskSelection

RECIPES = "arpo_verl.recipes"


@dataclass(frozen=True)
class DoorConfig:
    """Holds our sections, validated, and EasyR1's as plain values."""

    agent: GuiAgentConfig
    environment: EnvironmentConfig
    replay: ReplayConfig
    tasks: TaskSelection
    """Section `data.tasks`."""
    train_files: Sequence[str]
    val_files: Sequence[str]
    """Empty: nothing is validated."""
    run_dir: Path
    """Where checkpoints, metrics and episodes go."""
    ray_init: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `ray.init`: section `ray_kwargs.ray_init`, as in veRL's recipes."""
    theirs: Mapping[str, Any] = field(default_factory=dict)
    """What is left: EasyR1's configuration."""


def read_config(arguments: Sequence[str]) -> DoorConfig:
    """Read `config=FILE` and what is set behind it.

    Args:
        arguments: `config=`, a YAML file or the name of a recipe of ours (`easyr1/osworld`), and `OPTION=VALUE`.

    Raises:
        ConfigError: names all that is wrong with our sections.
    """
    wrong = [argument for argument in arguments if "=" not in argument]
    require(not wrong, "an argument", "OPTION=VALUE", " ".join(wrong))
    try:
        given = OmegaConf.from_cli(list(arguments))
        source = given.pop("config", None)
        require(source is not None, "config", "a YAML file or a recipe, as config=easyr1/embedded", source)
        merged = OmegaConf.merge(OmegaConf.load(_find(str(source))), given)
        values: Any = OmegaConf.to_container(merged, resolve=True)
    except (OmegaConfBaseException, OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"the configuration cannot be read: {error}") from error
    require(isinstance(values, dict), "the configuration", "a mapping of options", type(values).__name__)
    return split_config(values)


def split_config(values: Mapping[str, Any]) -> DoorConfig:
    """Take our sections out of the whole configuration, as plain values, and check them.

    Raises:
        ConfigError: names all that is wrong with them.
    """
    theirs, problems = {name: _copy(section) for name, section in values.items()}, Problems()
    built: dict[str, Any] = {}
    data, trainer = theirs.setdefault("data", {}), theirs.setdefault("trainer", {})
    run_dir = Path(theirs.pop("run_dir", None) or Path("runs") / str(trainer.get("experiment_name", "easyr1")))
    run_dir = run_dir.absolute()
    agent = {"trajectory_dir": str(run_dir / TRAJECTORIES), **(theirs.pop("gui_agent", None) or {})}
    environment = {"status_file": str(run_dir / POOL_FILE), **(theirs.pop("environment", None) or {})}
    for cls, name, section in (
        (GuiAgentConfig, "gui_agent", agent),
        (EnvironmentConfig, "environment", environment),
        (ReplayConfig, "replay", theirs.pop("replay", None)),
        (TaskSelection, "data.tasks", data.pop("tasks", None)),
    ):
        with problems.gather():
            built[name] = build_config(cls, name, section)
    train_files, val_files = (_as_files(data.pop(name, None)) for name in ("train_files", "val_files"))
    with problems.gather():
        require(bool(train_files), "data.train_files", "task files, as data.train_files=embedded", None)
    ray_init = (theirs.pop("ray_kwargs", None) or {}).get("ray_init") or {}
    trainer["save_checkpoint_path"] = trainer.get("save_checkpoint_path") or str(run_dir / CHECKPOINTS)
    if "gui_agent" in built:
        with problems.gather():
            remedy = "this door trains one row an episode; the stock veRL trainer takes the others"
            require(built["gui_agent"].context == FULL, "gui_agent.context", FULL, built["gui_agent"].context, remedy)
    if "data.tasks" in built:
        with problems.gather():
            got, remedy = built["data.tasks"].sampling, "the stock veRL trainer has frontier sampling"
            require(got == UNIFORM, "data.tasks.sampling", UNIFORM, got, remedy)
    problems.raise_all()
    agent, environment, replay, tasks = built["gui_agent"], built["environment"], built["replay"], built["data.tasks"]
    return DoorConfig(agent, environment, replay, tasks, train_files, val_files, run_dir, ray_init, theirs)


def check_stock(door: DoorConfig, stock: Any) -> None:
    """Refuse what EasyR1 would only fail on in the middle of a run, or would do silently.

    Args:
        stock: EasyR1's `PPOConfig`, filled.

    Raises:
        ConfigError: names all that cannot work.
    """
    rollout, algorithm, data = stock.worker.rollout, stock.algorithm, stock.data
    gpus, rows = stock.trainer.n_gpus_per_node * stock.trainer.nnodes, data.rollout_batch_size * rollout.n
    shown, limit = door.agent.row_screenshots, rollout.limit_images
    problems = Problems()
    for holds, name, expected, got, remedy in (
        (algorithm.adv_estimator == "grpo", "algorithm.adv_estimator", "grpo", algorithm.adv_estimator,
         "replay.enable says whether it is ARPO's or EasyR1's own"),
        (not algorithm.online_filtering, "algorithm.online_filtering", "false", algorithm.online_filtering,
         "replay makes failed groups informative instead"),
        (data.mini_rollout_batch_size is None, "data.mini_rollout_batch_size", "null", data.mini_rollout_batch_size,
         "a step plays all its tasks at once"),
        (rollout.n > 1, "worker.rollout.n", "2 or more", rollout.n, "a group is compared within itself"),
        (rows % gpus == 0, "data.rollout_batch_size x worker.rollout.n", f"a multiple of the {gpus} GPUs", rows,
         "EasyR1 gives each the same number of rows"),
        (limit >= shown, "worker.rollout.limit_images", f"at least {shown}, the screenshots of an episode", limit,
         "vLLM refuses a prompt with more images than this"),
    ):  # fmt: skip
        with problems.gather():
            require(holds, name, expected, got, remedy)
    problems.raise_all()


def _find(source: str) -> Path:
    shipped = Path(str(resources.files(RECIPES))) / f"{source}.yaml"
    return shipped if shipped.is_file() else Path(source)


def _copy(section: Any) -> Any:
    return dict(section) if isinstance(section, Mapping) else section


def _as_files(files: Any) -> list[str]:
    return [str(file) for file in files] if isinstance(files, (list, tuple)) else [str(files)] if files else []
