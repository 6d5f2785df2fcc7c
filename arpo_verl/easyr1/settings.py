"""The configuration is EasyR1's own with our sections beside it. EasyR1 refuses unknown keys, so this module takes ours
out first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from operator import attrgetter
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from arpo_verl.agent.models.family import FULL
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import Problems, build_config, require
from arpo_verl.records.layout import CHECKPOINTS, POOL_FILE, TRAJECTORIES
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.tasks.selection import UNIFORM, TaskSelection

FIXED: Mapping[str, tuple[Any, str]] = {
    "algorithm.adv_estimator": ("grpo", "replay.enable chooses between ARPO's and EasyR1's own"),
    "algorithm.online_filtering": (False, "replay makes failed groups informative instead"),
    "data.format_prompt": (None, "gui_agent.model_family writes the prompt"),
    "data.mini_rollout_batch_size": (None, "a step plays all its tasks at once"),
    "worker.reward.reward_function": (None, "a task's own evaluator gives the reward"),
}
"""EasyR1's options that allow only one value here, and why."""


@dataclass(frozen=True)
class DoorConfig:
    """The configuration has our sections, validated, and EasyR1's as plain values."""

    agent: GuiAgentConfig
    environment: EnvironmentConfig
    replay: ReplayConfig
    tasks: TaskSelection
    """Section `data.tasks`."""
    train_files: Sequence[str]
    val_files: Sequence[str]
    """Task files for validation; empty for none."""
    run_dir: Path
    """Folder for checkpoints, metrics and episodes."""
    ray_init: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `ray.init`: section `ray_kwargs.ray_init`, as in veRL's recipes."""
    theirs: Mapping[str, Any] = field(default_factory=dict)
    """The rest, which is EasyR1's configuration."""


def read_config(arguments: Sequence[str]) -> DoorConfig:
    """Read `config=FILE` and the overrides after it.

    Args:
        arguments: `config=` with a YAML file or one of our recipes (`easyr1/osworld`), and `OPTION=VALUE`.

    Raises:
        ConfigError: our sections are wrong; names all problems.
    """
    wrong = [argument for argument in arguments if "=" not in argument]
    require(not wrong, "an argument", "OPTION=VALUE", " ".join(wrong))
    try:
        given = OmegaConf.from_cli(list(arguments))
        source = given.pop("config", None)
        require(source is not None, "config", "a YAML file or a recipe, as config=easyr1/embedded", source)
        merged = OmegaConf.merge(OmegaConf.load(_find(str(source))), given)
        values: Any = OmegaConf.to_container(merged, resolve=True)
    except ConfigError:
        raise
    except (OmegaConfBaseException, YAMLError, OSError, TypeError, ValueError) as error:
        raise ConfigError(f"cannot read the configuration: {error}") from error
    return split_config(values)


def split_config(values: Mapping[str, Any]) -> DoorConfig:
    """Take our sections out of the whole configuration, as plain values, and check them.

    Raises:
        ConfigError: our sections are wrong; names all problems.
    """
    theirs, problems = dict(values), Problems()
    built: dict[str, Any] = {}
    data, trainer = (_take(theirs, name) for name in ("data", "trainer"))
    run_dir = Path(str(theirs.pop("run_dir", None) or Path("runs", str(trainer.get("experiment_name", "easyr1")))))
    run_dir = run_dir.absolute()
    for place, cls, name, holder, defaults in (
        ("agent", GuiAgentConfig, "gui_agent", theirs, {"trajectory_dir": str(run_dir / TRAJECTORIES)}),
        ("environment", EnvironmentConfig, "environment", theirs, {"status_file": str(run_dir / POOL_FILE)}),
        ("replay", ReplayConfig, "replay", theirs, {}),
        ("tasks", TaskSelection, "data.tasks", data, {}),
    ):
        with problems.gather():
            built[place] = build_config(cls, name, {**defaults, **_take(holder, name)})
    for name in ("train_files", "val_files"):
        with problems.gather():
            built[name] = _take_files(data, name)
    with problems.gather():
        ray_init = _take(_take(theirs, "ray_kwargs"), "ray_kwargs.ray_init")
    theirs |= {"data": data, "trainer": trainer}
    trainer["save_checkpoint_path"] = trainer.get("save_checkpoint_path") or str(run_dir / CHECKPOINTS)
    if "agent" in built:
        with problems.gather():
            remedy = "EasyR1 trains one row an episode here; for other contexts use the stock veRL trainer"
            require(built["agent"].context == FULL, "gui_agent.context", FULL, built["agent"].context, remedy)
    if "tasks" in built:
        with problems.gather():
            got, remedy = built["tasks"].sampling, "for frontier sampling use the stock veRL trainer"
            require(got == UNIFORM, "data.tasks.sampling", UNIFORM, got, remedy)
    problems.raise_all()
    return DoorConfig(**built, run_dir=run_dir, ray_init=ray_init, theirs=theirs)


def check_stock(door: DoorConfig, stock: Any) -> None:
    """Refuse options with which EasyR1 would fail in the middle of a run, or do something else without a word.

    Args:
        stock: EasyR1's `PPOConfig`, filled.

    Raises:
        ConfigError: options cannot work; names all of them.
    """
    rollout, trainer, problems = stock.worker.rollout, stock.trainer, Problems()
    for name, (value, remedy) in FIXED.items():
        with problems.gather():
            got = attrgetter(name)(stock)
            require(got == value, name, {None: "null", False: "false"}.get(value, value), got, remedy)
    gpus, rows = trainer.n_gpus_per_node * trainer.nnodes, stock.data.rollout_batch_size * rollout.n
    shown, limit = door.agent.row_screenshots, rollout.limit_images
    for holds, name, expected, got, remedy in (
        (rollout.n > 1, "worker.rollout.n", "2 or more", rollout.n, "a group's rollouts are compared with each other"),
        (gpus > 0 and rows % gpus == 0, "data.rollout_batch_size x worker.rollout.n", f"a multiple of the {gpus} GPUs",
         rows, "EasyR1 gives each GPU the same number of rows"),
        (limit >= shown, "worker.rollout.limit_images", f"at least {shown}, the screenshots of an episode", limit,
         "vLLM refuses a prompt with more images than this"),
        (bool(door.val_files) or not (trainer.val_freq > 0 or trainer.val_only), "data.val_files", "task files", None,
         "name some, or set trainer.val_freq=-1 and trainer.val_only=false"),
    ):  # fmt: skip
        with problems.gather():
            require(holds, name, expected, got, remedy)
    problems.raise_all()


def _find(source: str) -> Path:
    shipped = Path(str(resources.files("arpo_verl.recipes"))) / f"{source}.yaml"
    return shipped if shipped.is_file() else Path(source)


def _take(holder: dict[str, Any], name: str) -> dict[str, Any]:
    """Take a section out, as a copy; return an empty one if there is none."""
    section = holder.pop(name.rpartition(".")[2], None)
    require(section is None or isinstance(section, Mapping), name, "a section of options", section)
    return dict(section or {})


def _take_files(data: dict[str, Any], name: str) -> list[str]:
    """Take the names of task files out."""
    given = data.pop(name, None) or []
    files = [given] if isinstance(given, str) else given
    whole = isinstance(files, list) and all(isinstance(file, str) for file in files)
    expected = "task files, as embedded or [a.json, b.json]"
    require(whole and (name == "val_files" or bool(files)), f"data.{name}", expected, given)
    return list(files)
