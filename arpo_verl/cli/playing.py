"""What the options of `cli/playing_options.py` come to: the tasks, the policy and the desktops."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo_verl.cli.composing import compose_named
from arpo_verl.cli.options import parse_options
from arpo_verl.config import Problems, build_config, require
from arpo_verl.environments.config import EMBEDDED, EnvironmentConfig
from arpo_verl.environments.factory import default_options
from arpo_verl.errors import ConfigError
from arpo_verl.evaluation.policy import Policy, Sampling
from arpo_verl.rollout.config import FULL, GuiAgentConfig
from arpo_verl.rollout.vision import ImageGeometry, check_pixel_limits
from arpo_verl.tasks.loader import load_tasks
from arpo_verl.tasks.validation import check_tasks_run_here
from arpo_verl.types import Task

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from arpo_verl.evaluation.checkpoint import Checkpoint
    from arpo_verl.evaluation.runner import EvaluationSettings

QWEN25 = ImageGeometry(28, 4 * 28 * 28, 16384 * 28 * 28)
QWEN3 = ImageGeometry(32, 64 * 32 * 32, 16384 * 32 * 32)
"""The resizing of these models' own processors, UI-TARS-1.5's being Qwen2.5-VL's."""


_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class Playing:
    """What the options come to."""

    tasks: tuple[Task, ...]
    settings: EvaluationSettings
    pixels: Mapping[str, int]
    """`min_pixels` and `max_pixels` of a screenshot, or neither: the processor's own."""


def read_command(args: argparse.Namespace) -> Playing:
    """Read what a command of `cli/playing_options.py` needs: `read_playing`, who plays, how often and into what.

    Raises:
        ArpoError: all that is wrong.
    """
    problems = Problems()
    if args.out is None:
        problems.errors.append(ConfigError("no folder given for what is played; add --out DIR"))
    if (args.model is None) == (args.endpoint is None):
        given = "no policy given" if args.model is None else "two policies given"
        problems.errors.append(ConfigError(f"{given}; name one, by --model PATH or --endpoint URL"))
    with problems.gather():
        require(args.runs >= 1, "--runs", "1 or more", args.runs)
    with problems.gather():
        playing = read_playing(args)
    problems.raise_all()
    return playing


def read_playing(args: argparse.Namespace) -> Playing:
    """Read the options, and the tasks.

    Raises:
        ConfigError: a value is wrong, or the recipe is none.
        TaskError: a task cannot be used, or does not run on this machine's desktops.
    """
    from arpo_verl.evaluation.runner import EvaluationSettings  # it needs Ray, which no other command waits for

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
    return Playing(tuple(tasks), EvaluationSettings(environment, agent, budgets, sampling), pixels)


def _agent(args: argparse.Namespace, recipe: _Recipe) -> GuiAgentConfig:
    agent = {**recipe.section("gui_agent"), **parse_options(args.agent, "--agent", "gui_agent.")}
    agent |= {"max_steps": max(args.max_steps or (agent.get("max_steps", 15),)), "trajectory_dir": None}
    if args.max_steps and agent.get("context", FULL) == FULL:
        agent["max_screenshots"] = None  # as many as replies
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


@contextlib.contextmanager
def open_policy(args: argparse.Namespace, playing: Playing, out: Path) -> Iterator[Policy]:
    """The policy of the options, for the length of the block.

    Args:
        out: the folder of what is played; a checkpoint is merged into it.

    Raises:
        ConfigError: there is no such policy.
        EndpointError: the server does not answer.
    """
    if args.endpoint is not None:
        yield _endpoint_policy(args, playing)
        return
    from arpo_verl.evaluation.checkpoint import find_checkpoint, model_folder

    if _HUB_NAME.fullmatch(str(args.model)) and not args.model.parent.exists():
        raise ConfigError(
            f"--model must be a folder, got {args.model}, which is not here; where it is a name on the model hub, run "
            f"`hf download {args.model} --local-dir FOLDER`, then name FOLDER"
        )
    checkpoint = find_checkpoint(args.model)
    folder = model_folder(checkpoint, out)
    if args.engine == "transformers" or (args.engine is None and not _has_gpu()):
        from arpo_verl.evaluation.own_engine import OwnEngine

        yield OwnEngine(folder, checkpoint.facts, playing.pixels, args.context)
        return
    from arpo_verl.evaluation.vllm_server import serving

    images = playing.settings.agent.row_screenshots
    values = {"images": images, "context": args.context, "pixels": playing.pixels, "options": shlex.split(args.vllm)}
    out.mkdir(parents=True, exist_ok=True)
    with serving(folder, out / "vllm-server.log", **values) as url:
        yield _served_policy(url, checkpoint, folder, args, playing)


def _endpoint_policy(args: argparse.Namespace, playing: Playing) -> Policy:
    from arpo_verl.evaluation.endpoint import Endpoint, EndpointPolicy, find_model, read_api_key

    endpoint = Endpoint(args.endpoint, read_api_key(args.api_key_env))
    model = asyncio.run(find_model(endpoint, args.model_name))
    return EndpointPolicy(endpoint, model, _geometry(args, playing), args.context)


def _served_policy(
    url: str, checkpoint: Checkpoint, folder: Path, args: argparse.Namespace, playing: Playing
) -> Policy:
    from arpo_verl.evaluation.endpoint import Endpoint, EndpointPolicy, find_model
    from arpo_verl.plugin.policy_files import load_processor

    endpoint = Endpoint(url)
    model = asyncio.run(find_model(endpoint, None))
    geometry = ImageGeometry.from_processor(load_processor(folder), playing.pixels)
    facts = {**checkpoint.facts, "engine": "vllm"}
    return EndpointPolicy(endpoint, model, geometry, args.context, facts)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _geometry(args: argparse.Namespace, playing: Playing) -> ImageGeometry:
    if args.processor is not None:
        from arpo_verl.plugin.policy_files import load_processor

        return ImageGeometry.from_processor(load_processor(args.processor), playing.pixels)
    own = QWEN3 if playing.settings.agent.grammar == "qwen3_vl" else QWEN25
    return ImageGeometry(own.factor, *(playing.pixels.values() or (own.min_pixels, own.max_pixels)))


class _Recipe:
    """What a recipe says; nothing where none is named."""

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
        section = default_options(provider)
    values = {**section, **parse_options(args.option, "--option", "environment."), "provider": provider}
    values |= {"status_file": None, "partial_credit": 0.0}  # of a training run alone
    if args.desktops is not None:
        values["num_desktops"] = args.desktops
    return build_config(EnvironmentConfig, "environment", values)
