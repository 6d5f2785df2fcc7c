"""This reads the options of `tools/cli/playing_options.py`: the tasks, how to play them, and the desktops."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arpo_verl.agent.models.family import FULL
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.vision import check_pixel_limits
from arpo_verl.desktops.config import EMBEDDED, EnvironmentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import Problems, build_config, require
from arpo_verl.tasks.loader import load_tasks
from arpo_verl.tasks.validation import check_tasks_run_here
from arpo_verl.tools.cli.composing import compose_named
from arpo_verl.tools.cli.options import parse_options
from arpo_verl.tools.evaluation.policy import Sampling
from arpo_verl.types import Task

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from arpo_verl.tools.evaluation.runner import EvaluationSettings


@dataclass(frozen=True)
class Playing:
    """These are the options' values."""

    tasks: tuple[Task, ...]
    settings: EvaluationSettings
    pixels: Mapping[str, int]
    """`min_pixels` and `max_pixels` of a screenshot, or neither for the processor's own."""
    tool_format: str | None = None
    """The recipe's parser of tool calls, for a harness that offers tools; None without a harness, and for veRL's usual
    one."""


def read_command(args: argparse.Namespace) -> Playing:
    """Read `read_playing`'s options, and check the policy, the number of runs and the folder.

    Raises:
        ArpoError: has everything that is wrong.
    """
    problems = Problems()
    if args.out is None:
        problems.errors.append(ConfigError("no folder given for the episodes; add --out DIR"))
    if (args.model is None) == (args.endpoint is None):
        given = "no policy given" if args.model is None else "two policies given"
        problems.errors.append(ConfigError(f"{given}; name one with --model PATH or --endpoint URL"))
    with problems.gather():
        require(args.runs >= 1, "--runs", "1 or more", args.runs)
    with problems.gather():
        playing = read_playing(args)
    problems.raise_all()
    return playing


def read_playing(args: argparse.Namespace) -> Playing:
    """Read the options, and the tasks.

    Raises:
        ConfigError: a value is wrong, or there is no such recipe.
        TaskError: a task is malformed, or does not run on this machine's desktops.
    """
    from arpo_verl.tools.evaluation.runner import (
        EvaluationSettings,  # imports Ray, which other commands need not wait for
    )

    problems, recipe = Problems(), _Recipe(args.recipe)
    with problems.gather():
        environment = _environment(args, recipe)
        with problems.gather():
            tasks = _tasks(args, recipe, environment)
    with problems.gather():
        agent = _agent(args, recipe)
    with problems.gather():
        pixels = _pixels(args, recipe)
    with problems.gather():
        sampling = Sampling(args.temperature, args.top_p, args.seed)
    problems.raise_all()
    budgets = args.max_steps or (agent.max_steps,)
    tool_format = None if agent.harness is None else recipe.value("actor_rollout_ref.rollout.multi_turn.format")
    return Playing(tuple(tasks), EvaluationSettings(environment, agent, budgets, sampling), pixels, tool_format)


def _agent(args: argparse.Namespace, recipe: _Recipe) -> GuiAgentConfig:
    agent = {**recipe.section("gui_agent"), **parse_options(args.agent, "--agent", "gui_agent.")}
    agent |= {"max_steps": max(args.max_steps or (agent.get("max_steps", 15),)), "trajectory_dir": None}
    if args.max_steps and agent.get("context", FULL) == FULL and agent.get("harness") is None:
        agent["max_screenshots"] = None  # as many screenshots as replies
    return build_config(GuiAgentConfig, "gui_agent", agent)


def _tasks(args: argparse.Namespace, recipe: _Recipe, environment: EnvironmentConfig) -> list[Task]:
    which = args.tasks or recipe.value("data.val_files")
    if which is None:
        raise ConfigError("no tasks given; add --tasks embedded, task files or a folder of them")
    tasks = load_tasks(which)
    check_tasks_run_here(tasks, environment)
    return tasks


def _pixels(args: argparse.Namespace, recipe: _Recipe) -> dict[str, Any]:
    pixels = dict(recipe.section("data.mm_processor_kwargs"))
    if args.min_pixels is not None or args.max_pixels is not None:
        pixels = {"min_pixels": args.min_pixels, "max_pixels": args.max_pixels}
    check_pixel_limits(pixels)
    return pixels


class _Recipe:
    """This has a recipe's values; nothing without a recipe."""

    def __init__(self, name: str | None):
        self._config: DictConfig | None = None
        if name is not None:
            self._config = compose_named(name)

    def value(self, key: str) -> Any:
        if self._config is None:
            return None
        from omegaconf import OmegaConf

        value = OmegaConf.select(self._config, key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value

    def section(self, key: str) -> dict[str, Any]:
        return dict(self.value(key) or {})


def _environment(args: argparse.Namespace, recipe: _Recipe) -> EnvironmentConfig:
    section = recipe.section("environment")
    provider = args.provider or section.get("provider", EMBEDDED)
    if provider != section.get("provider"):
        section = {}
    values = {**section, **parse_options(args.option, "--option", "environment."), "provider": provider}
    values |= {"status_file": None, "partial_credit": 0.0}  # only for training runs
    if args.desktops is not None:
        values["num_desktops"] = args.desktops
    return build_config(EnvironmentConfig, "environment", values)
