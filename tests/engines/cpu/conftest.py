"""A small Qwen2.5-VL and its processor as veRL loads it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import ROOT
from support.generation_harness import PlainModel

SCREEN = (480, 640, 3)
PYTHON = ROOT / os.environ.get("VLLM_VENV", ".cache/vllm") / "bin" / "python"


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's small policy, with weights large enough that every token of the context shows in the logits."""
    from support.policies.build import build_policy
    from transformers import AutoModelForImageTextToText

    folder = build_policy(tmp_path_factory.mktemp("policy") / "model")
    model = AutoModelForImageTextToText.from_pretrained(folder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers" in name and parameter.dim() == 2:
                parameter.mul_(3.0)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def processor(policy: Path) -> Any:
    from verl.utils.tokenizer import hf_processor

    return hf_processor(str(policy))


@pytest.fixture(scope="session")
def plain(policy: Path, processor: Any) -> PlainModel:
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(policy, attn_implementation="sdpa", dtype=torch.float32)
    return PlainModel(model.eval(), processor)


@pytest.fixture(scope="session")
def screenshots() -> list[Image.Image]:
    """Four pictures of coarse noise, as different to the vision tower as screenshots are."""
    generator = np.random.default_rng(0)
    small = generator.integers(0, 255, (4, 12, 16, 3), dtype=np.uint8)
    return [Image.fromarray(pixels).resize((SCREEN[1], SCREEN[0]), Image.NEAREST) for pixels in small]


@pytest.fixture
def packed_model(policy: Path) -> Any:
    """The model as the rollout engine loads it."""
    from transformers import AutoModelForImageTextToText

    from arpo_verl.engines.cpu.generation.kv_cache import ATTENTION

    attention = {"text_config": ATTENTION, "vision_config": "sdpa"}
    return AutoModelForImageTextToText.from_pretrained(policy, attn_implementation=attention, dtype=torch.float32)


@pytest.fixture
def make_generator(packed_model: Any, processor: Any) -> Any:
    from arpo_verl.engines.cpu.generation.generator import Generator
    from arpo_verl.engines.cpu.options import EngineOptions

    def make(banned: Sequence[int] = (), seed: int = 0, **options: Any) -> Generator:
        return Generator(
            packed_model,
            processor,
            eos_token_ids=[processor.tokenizer.eos_token_id],
            banned_token_ids=[processor.image_token_id, processor.video_token_id, *banned],
            options=EngineOptions(**options),
            seed=seed,
        )

    return make


@pytest.fixture
def python_path():
    """Of the other environment."""
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is not there; run: make vllm")
    return PYTHON


@pytest.fixture
def python(python_path):
    """Runs it, with this checkout first on its path."""

    def run(*arguments, **environment):
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "PYTHONPATH": path, **environment}
        done = subprocess.run([python_path, *arguments], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    return run


@pytest.fixture
def vllm_version(python):
    """Of the other environment."""
    return python("-c", "from importlib.metadata import version; print(version('vllm'))").split()[-1]
