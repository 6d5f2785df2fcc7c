"""Read the options of `tools/cli/playing_options.py`: tasks, settings and desktops; open the policy."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo_verl.agent.models.family import FULL, check_model_type, check_trainable, load_family, read_model_type
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.vision import ImageGeometry, check_pixel_limits
from arpo_verl.desktops.config import EMBEDDED, EnvironmentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import Problems, build_config, require
from arpo_verl.tasks.loader import load_tasks
from arpo_verl.tasks.validation import check_tasks_run_here
from arpo_verl.tools.cli.composing import compose_named
from arpo_verl.tools.cli.options import parse_options
from arpo_verl.tools.cli.terminal import ended_by_signals
from arpo_verl.tools.evaluation.checkpoint import find_checkpoint, model_folder
from arpo_verl.tools.evaluation.endpoint import Endpoint, EndpointPolicy, find_model, read_api_key
from arpo_verl.tools.evaluation.policy import Policy, Sampling
from arpo_verl.types import Task

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from arpo_verl.tools.evaluation.runner import EvaluationSettings


@dataclass(frozen=True)
class Playing:
    """The options' values."""

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
    from arpo_verl.tools.evaluation.runner import EvaluationSettings  # imports Ray, for which only these commands wait

    problems, recipe = Problems(), None if args.recipe is None else compose_named(args.recipe)
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
    tool_format = None if agent.harness is None else _value(recipe, "actor_rollout_ref.rollout.multi_turn.format")
    return Playing(tuple(tasks), EvaluationSettings(environment, agent, budgets, sampling), pixels, tool_format)


def _agent(args: argparse.Namespace, recipe: DictConfig | None) -> GuiAgentConfig:
    agent = {**(_value(recipe, "gui_agent") or {}), **parse_options(args.agent, "--agent", "gui_agent.")}
    agent |= {"max_steps": max(args.max_steps or (agent.get("max_steps", 15),)), "trajectory_dir": None}
    family = str(agent.get("model_family", GuiAgentConfig.model_family))
    context = agent.get("context") or load_family(family).context
    if args.max_steps and context == FULL and agent.get("harness") is None:
        agent["max_screenshots"] = None  # as many screenshots as replies
    return build_config(GuiAgentConfig, "gui_agent", agent)


def _tasks(args: argparse.Namespace, recipe: DictConfig | None, environment: EnvironmentConfig) -> list[Task]:
    which = args.tasks or _value(recipe, "data.val_files")
    if which is None:
        raise ConfigError("no tasks given; add --tasks embedded, task files or a folder of them")
    tasks = load_tasks(which)
    check_tasks_run_here(tasks, environment)
    return tasks


def _pixels(args: argparse.Namespace, recipe: DictConfig | None) -> dict[str, Any]:
    pixels = dict(_value(recipe, "data.mm_processor_kwargs") or {})
    if args.min_pixels is not None or args.max_pixels is not None:
        pixels = {"min_pixels": args.min_pixels, "max_pixels": args.max_pixels}
    check_pixel_limits(pixels)
    return pixels


def _value(recipe: DictConfig | None, key: str) -> Any:
    if recipe is None:
        return None
    from omegaconf import OmegaConf

    value = OmegaConf.select(recipe, key)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _environment(args: argparse.Namespace, recipe: DictConfig | None) -> EnvironmentConfig:
    section = _value(recipe, "environment") or {}
    provider = args.provider or section.get("provider", EMBEDDED)
    if provider != section.get("provider"):
        section = {}
    values = {**section, **parse_options(args.option, "--option", "environment."), "provider": provider}
    values |= {"status_file": None, "partial_credit": 0.0}  # only for training runs
    if args.desktops is not None:
        values["num_desktops"] = args.desktops
    return build_config(EnvironmentConfig, "environment", values)


@contextlib.contextmanager
def open_policy(args: argparse.Namespace, playing: Playing, out: Path) -> Iterator[Policy]:
    """Open the policy of the options, until the end of the block, which a signal ends as Ctrl-C does.

    Args:
        out: the folder of the episodes; a checkpoint is merged into it.

    Raises:
        ConfigError: there is no such policy.
        EndpointError: the server does not answer.
    """
    if args.endpoint is None:
        print("loading the model; this takes some seconds, with vLLM minutes ...", flush=True)
    with ended_by_signals("the same command resumes it"):
        yield from _open_policy(args, playing, out)


def _open_policy(args: argparse.Namespace, playing: Playing, out: Path) -> Iterator[Policy]:
    if args.endpoint is not None:
        endpoint = Endpoint(args.endpoint, read_api_key(args.api_key_env))
        model = asyncio.run(find_model(endpoint, args.model_name))
        yield EndpointPolicy(endpoint, model, image_geometry(args.processor, playing), args.context)
        return
    checkpoint = find_checkpoint(args.model)
    folder = model_folder(checkpoint, out)
    _check_family(playing, folder, str(args.model))
    if args.engine == "transformers" or (args.engine is None and not _has_gpu()):
        check_trainable(playing.settings.agent.model_family)
        from arpo_verl.tools.evaluation.own_engine import OwnEngine

        yield OwnEngine(folder, checkpoint.facts, playing.pixels, args.context, playing.tool_format)
        return
    from arpo_verl.tools.evaluation.vllm_server import vllm_policy

    images = playing.settings.agent.row_screenshots
    values = {"images": images, "context": args.context, "pixels": playing.pixels, "options": shlex.split(args.vllm)}
    out.mkdir(parents=True, exist_ok=True)
    with vllm_policy(folder, checkpoint.facts, out / "vllm-server.log", **values) as policy:
        yield policy


def _check_family(playing: Playing, folder: Path, name: str) -> None:
    """Refuse a model of another family than is asked for; a harness has words and actions of its own."""
    agent = playing.settings.agent
    if agent.harness is None:
        check_model_type(agent.model_family, read_model_type(folder), name)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def image_geometry(processor: Path | None, playing: Playing) -> ImageGeometry:
    """Return how a server's model resizes screenshots.

    Args:
        processor: a model's folder with its processor; None: as the family's models do.
    """
    if processor is not None:
        _check_family(playing, processor, str(processor))
        from arpo_verl.plugin.settings import load_processor

        return ImageGeometry.from_processor(load_processor(processor), playing.pixels)
    usual = playing.settings.agent.family.image._asdict()
    limits = playing.pixels if check_pixel_limits(playing.pixels) else usual
    return ImageGeometry(usual["factor"], limits["min_pixels"], limits["max_pixels"])
