"""Each start of a run adds a line to its `starts.jsonl`: the recipe's important values, and the versions."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo_verl.records.ended_starts import read_faults
from arpo_verl.records.json_files import append_objects, as_number, read_lines
from arpo_verl.records.layout import STARTS_FILE
from arpo_verl.versions import OPTIONAL, TESTED, __version__, installed_version

# Whole sections, and single values of sections with secrets (environment.password) or with too much.
SECTIONS = ("gui_agent", "replay")
VALUES = (
    "trainer.v1.trainer_mode",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "data.train_files",
    "data.val_files",
    "data.train_batch_size",
    "data.seed",
    "environment.provider",
    "environment.num_desktops",
    "environment.screen_size",
    "algorithm.adv_estimator",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.rollout.val_kwargs.temperature",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high",
    "actor_rollout_ref.actor.use_kl_loss",
)


def note_start(run_dir: Path, config: Any, estimate: Sequence[str] = (), total_steps: int | None = None) -> None:
    """Append a start of this run.

    Args:
        config: the composed recipe, a `DictConfig`.
        estimate: lines with the memory and disk that the run will need.
        total_steps: number of the run's training steps; None if unknown.
    """
    packages = {name: installed_version(name) for name in (*TESTED, *OPTIONAL)}
    versions = {"arpo-verl": __version__, "python": platform.python_version(), **packages}
    start = {"time": time.time(), "versions": versions, "recipe": recipe_values(config), "estimate": list(estimate)}
    append_objects(run_dir / STARTS_FILE, [{**start, "total_steps": total_steps}])


def recipe_values(config: Any) -> dict[str, Any]:
    """Return the recipe's important values, by their full names, without those that it does not have."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(config, resolve=False)
    values = {name: OmegaConf.select(config, name) for name in VALUES}
    for section in SECTIONS:
        for key in (plain.get(section) or {}) if isinstance(plain, Mapping) else {}:
            values[f"{section}.{key}"] = OmegaConf.select(config, f"{section}.{key}")
    return {
        name: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for name, value in values.items()
        if value is not None
    }


def read_starts(run_dir: Path) -> list[dict[str, Any]]:
    """Return a run's starts, the first one first; empty if the run has no such file, or no recipe."""
    starts = read_lines(run_dir / STARTS_FILE, dict[str, Any])
    return [start for start in starts if all(isinstance(start.get(part), dict) for part in ("recipe", "versions"))]


def faults_before(run_dir: Path, starts: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Return for each start what ended the start before it, as far as `faults.jsonl` has it."""
    faults, found = read_faults(run_dir), list[str | None]()
    since = 0.0
    for start in starts:
        begun = as_number(start.get("time")) or since
        found.append(next((fault.sentence for fault in faults if since <= fault.time <= begun), None))
        since = begun
    return found
