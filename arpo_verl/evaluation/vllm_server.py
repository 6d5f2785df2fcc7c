"""A checkpoint on GPUs: `vllm serve` as a child of ours, spoken to as any endpoint. Not yet run on a GPU by us."""

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

from arpo_verl.errors import ConfigError, EndpointError, MissingDependencyError
from arpo_verl.evaluation.endpoint import Endpoint, EndpointPolicy, find_model
from arpo_verl.reaper import end_with_parent
from arpo_verl.rollout.vision import ImageGeometry
from arpo_verl.versions import SUPPORTED_VERL, pip_install

logger = logging.getLogger(__name__)

MODEL_NAME = "policy"
START_TIMEOUT_S = 1800.0
"""Weights of a large model from a slow disk, and the compilation."""
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
    """The model of a folder as a policy, on a server that ends with the block. Arguments and errors as of `serving`.

    Args:
        facts: what says which model it is.
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
    """The server's URL; it ends with the block, or with this process however that ends.

    Args:
        folder: the model's.
        log: file for what it says.
        images: screenshots of an episode, at most.
        context: tokens of a sequence; None: what vLLM takes from the model.
        pixels: `min_pixels` and `max_pixels` for its image processor, as in training.
        options: further ones of `vllm serve`, such as `--tensor-parallel-size 4`.

    Raises:
        MissingDependencyError: there is no program `vllm`.
        ConfigError: it ended while it started.
        EndpointError: it does not get ready.
    """
    if shutil.which("vllm") is None:
        vllm = pip_install(f"verl[vllm]=={SUPPORTED_VERL[-1]}")
        raise MissingDependencyError(f"a model on GPUs is served by vLLM; {vllm}, or give --endpoint")
    held = _held_port()
    port = held.getsockname()[1]
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
            start_new_session=True,  # a Ctrl-C is for us, who then end it
            preexec_fn=end_with_parent,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        with held:
            _await_ready(process, url, log)
        yield f"{url}/v1"
    finally:
        _end(process)


def _await_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    logger.info("vLLM starts; its log is %s", log)
    direct = requests.Session()
    direct.trust_env = False  # no proxy knows this machine's loopback
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            words = log.read_bytes()[-_LAST_WORDS:].decode("utf-8", "replace")
            raise ConfigError(f"`vllm serve` must start, it ended with {process.returncode}: {words}; all is in {log}")
        with contextlib.suppress(requests.RequestException):
            if direct.get(f"{url}/health", timeout=_POLL_S).status_code == 200:
                return
        time.sleep(_POLL_S)
    raise EndpointError(f"`vllm serve` must be ready within {START_TIMEOUT_S:g} s; its log is {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """It has processes of its own: they are of its session."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _held_port() -> socket.socket:
    """A socket on a free port: as long as it is open the kernel gives the port to nobody who asks for any.

    A server that names the port may listen there if it sets SO_REUSEADDR, as vLLM's does: it binds its port only once
    its imports are over.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
