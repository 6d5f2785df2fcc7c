"""Serves a checkpoint on GPUs with `vllm serve` as a child, like any endpoint. We have not run it on GPUs yet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import requests

from arpo_verl.agent.rollout.vision import ImageGeometry
from arpo_verl.errors import ConfigError, EndpointError, MissingDependencyError
from arpo_verl.lib import run_marker
from arpo_verl.lib.reaper import end_with_parent
from arpo_verl.tools.evaluation.endpoint import Endpoint, EndpointPolicy, find_model
from arpo_verl.versions import SUPPORTED_VERL, pip_install

logger = logging.getLogger(__name__)

MODEL_NAME = "policy"
START_TIMEOUT_S = 1800.0
"""The time-out of a start, for a large model's weights on a slow disk, and for the compilation."""
_END_TIMEOUT_S = 30.0
_POLL_S = 0.5
_LAST_WORDS = 1500


@contextlib.contextmanager
def vllm_policy(
    folder: Path,
    facts: Mapping[str, Any],
    log: Path,
    *,
    images: int,
    context: int | None,
    pixels: Mapping[str, int],
    options: Sequence[str],
) -> Iterator[EndpointPolicy]:
    """Serve a folder's model as a policy until the end of the block. Arguments and errors are those of `serving`.

    Args:
        facts: what identifies the model.
    """
    from arpo_verl.plugin.settings import load_processor  # it imports veRL

    with serving(folder, log, images=images, context=context, pixels=pixels, options=options) as url:
        endpoint = Endpoint(url)
        model = asyncio.run(find_model(endpoint, None))
        geometry = ImageGeometry.from_processor(load_processor(folder), pixels)
        yield EndpointPolicy(endpoint, model, geometry, context, {**facts, "engine": "vllm"})


@contextlib.contextmanager
def serving(
    folder: Path,
    log: Path,
    *,
    images: int,
    context: int | None = None,
    pixels: Mapping[str, int] | None = None,
    options: Sequence[str] = (),
) -> Iterator[str]:
    """Start a server and yield its URL; it ends with the block, or with this process in any case.

    Args:
        folder: the model's folder.
        log: file for its output.
        images: most screenshots of an episode.
        context: most tokens of a sequence; None takes vLLM's number for the model.
        pixels: `min_pixels` and `max_pixels` for its image processor, as in training.
        options: further options of `vllm serve`, such as `--tensor-parallel-size 4`.

    Raises:
        MissingDependencyError: there is no program `vllm`.
        ConfigError: it ended while it started.
        EndpointError: it did not get ready in time.
    """
    if shutil.which("vllm") is None:
        vllm = pip_install(f"verl[vllm]=={SUPPORTED_VERL[-1]}")
        raise MissingDependencyError(f"a model on GPUs needs vLLM; {vllm}, or use --endpoint")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["vllm", "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", MODEL_NAME, "--limit-mm-per-prompt", json.dumps({"image": images, "video": 0})]
    if context is not None:
        command += ["--max-model-len", str(context)]
    if pixels:
        command += ["--mm-processor-kwargs", json.dumps(dict(pixels))]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*command, *options],
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **run_marker.MARKER},
            start_new_session=True,  # a Ctrl-C reaches only us, and then we end it
            preexec_fn=end_with_parent,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _await_ready(process, url, log)
        yield f"{url}/v1"
    finally:
        _end(process)


def _await_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    logger.info("vLLM starts; its log is %s", log)
    direct = requests.Session()
    direct.trust_env = False  # proxies cannot reach this machine's loopback
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            words = log.read_bytes()[-_LAST_WORDS:].decode("utf-8", "replace")
            raise ConfigError(f"`vllm serve` ended with status {process.returncode}: {words}; its log is {log}")
        with contextlib.suppress(requests.RequestException):
            if direct.get(f"{url}/health", timeout=_POLL_S).status_code == 200:
                return
        time.sleep(_POLL_S)
    raise EndpointError(f"`vllm serve` was not ready within {START_TIMEOUT_S:g} s; its log is {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and its own processes, which are in its session."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
