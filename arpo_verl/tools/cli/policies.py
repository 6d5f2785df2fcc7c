"""This opens the policy of the options in `tools/cli/playing_options.py`: a server's model, or a model's folder."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from arpo_verl.agent.models.family import check_model_type, check_trainable, read_model_type
from arpo_verl.agent.rollout.vision import ImageGeometry
from arpo_verl.tools.cli.playing import Playing
from arpo_verl.tools.evaluation.checkpoint import find_checkpoint, model_folder
from arpo_verl.tools.evaluation.endpoint import Endpoint, EndpointPolicy, find_model, read_api_key
from arpo_verl.tools.evaluation.policy import Policy


@contextlib.contextmanager
def open_policy(args: argparse.Namespace, playing: Playing, out: Path) -> Iterator[Policy]:
    """Open the policy of the options, until the end of the block.

    Args:
        out: the folder of the episodes; a checkpoint is merged into it.

    Raises:
        ConfigError: there is no such policy.
        EndpointError: the server does not answer.
    """
    if args.endpoint is not None:
        endpoint = Endpoint(args.endpoint, read_api_key(args.api_key_env))
        model = asyncio.run(find_model(endpoint, args.model_name))
        yield EndpointPolicy(endpoint, model, geometry(args.processor, playing), args.context)
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


def geometry(processor: Path | None, playing: Playing) -> ImageGeometry:
    """Return how a server's model resizes screenshots.

    Args:
        processor: a model's folder with its processor; None: as the family's models do.
    """
    if processor is not None:
        _check_family(playing, processor, str(processor))
        from arpo_verl.plugin.settings import load_processor

        return ImageGeometry.from_processor(load_processor(processor), playing.pixels)
    usual = playing.settings.agent.family.image
    return ImageGeometry(usual.factor, *(playing.pixels.values() or (usual.min_pixels, usual.max_pixels)))
