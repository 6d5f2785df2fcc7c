"""Finds the model's folder for a user's path; veRL's own merger merges a checkpoint of veRL's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from arpo_verl.errors import ConfigError
from arpo_verl.lib.files import replacing_directory

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_SHARDS = "model_world_size_*_rank_*.pt"
_FSDP_FILE, _LORA_FILE = "fsdp_config.json", "lora_train_meta.json"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_STEP = re.compile(r"global_step_([0-9]+)")
_SAMPLE_BYTES = 1 << 20
_LAST_WORDS = 800


@dataclass(frozen=True)
class Checkpoint:
    """The place of a model's weights.

    Attributes:
        name: the user's name for it: the model's folder, or the step's.
        folder: the folder with the files.
        is_sharded: whether it has FSDP's shards, as veRL saves them; otherwise Transformers can load the folder.
        weights: a digest of the files' names, sizes and both ends, which differs for other weights.
    """

    name: Path
    folder: Path
    is_sharded: bool
    weights: str

    @property
    def facts(self) -> dict[str, str]:
        """Describe it in JSON."""
        return {"model": str(self.name), "weights": self.weights}


def find_checkpoint(path: Path, option: str = "--model") -> Checkpoint:
    """Find the checkpoint of `path`: a model's folder, a checkpoint's `actor`, its step's folder, or the folder of all
    steps or of the run. In the last two it takes the newest complete step: a run may be killed while it saves one.

    Args:
        option: the option that gave the path, for messages.

    Raises:
        ConfigError: the path is none of these, or an adapter's.
    """
    if _HUB_NAME.fullmatch(str(path)) and not path.parent.exists():
        raise ConfigError(
            f"{option} must be a folder, got {path}, which is not here; if it is a name on the model hub, run "
            f"`hf download {path} --local-dir FOLDER`, then name FOLDER"
        )
    try:
        path = path.expanduser().resolve()
    except RuntimeError as error:  # links in a circle, or ~ of an unknown user
        raise ConfigError(f"{option} must be a folder, got {path}: {error}") from error
    if (path / "config.json").is_file() and _files(path, WEIGHTS):
        return Checkpoint(path, path, False, _digest(_files(path, WEIGHTS)))
    steps = [step for parent in (path, path / "checkpoints") for step in _steps(parent)]
    around = path.parent if path.name == "actor" else path
    for step in (*sorted(steps, key=_number, reverse=True), around):
        actor = step / "actor"
        _check_no_adapter(actor, option)
        whole = actor / "huggingface"
        if _files(whole, WEIGHTS):  # with `hf_model` in `checkpoint.save_contents`
            return Checkpoint(step, whole, False, _digest(_files(whole, WEIGHTS)))
        if (actor / _FSDP_FILE).is_file() and _files(actor, (_SHARDS,)):
            return Checkpoint(step, actor, True, _digest(_files(actor, (_SHARDS,))))
    raise ConfigError(
        f"{option} must be a folder with a model's config.json and weights, or a checkpoint of veRL's by FSDP (the "
        f"global_step_N folder, with {_FSDP_FILE} in actor/), got {path}; merge a checkpoint of Megatron's first, with "
        "`python -m verl.model_merger merge --backend megatron`"
    )


def _check_no_adapter(actor: Path, option: str) -> None:
    """Refuse an adapter: veRL's merger writes it apart from the original weights, and only those would be evaluated."""
    if (actor / _LORA_FILE).is_file():
        raise ConfigError(
            f"{option} must be a checkpoint of whole weights, but {actor} is one of LoRA; merge it first: `python -m "
            "verl.model_merger merge` writes lora_adapter/, and PEFT's merge_and_unload adds that to the weights"
        )


def place_of_model(checkpoint: Checkpoint, out: Path) -> Path:
    """Return the folder that `model_folder` returns, and makes if necessary."""
    return out / f"model-{checkpoint.weights[:12]}" if checkpoint.is_sharded else checkpoint.folder


def model_folder(checkpoint: Checkpoint, out: Path) -> Path:
    """Return the checkpoint as a folder that Transformers loads; it merges shards into `out` once, whole or not at all.

    veRL's merger keeps weights in bfloat16. It unpickles the shards, so use it only for a checkpoint that you trust.

    Raises:
        ConfigError: the merger fails.
    """
    target = place_of_model(checkpoint, out)
    if checkpoint.is_sharded and not target.is_dir():
        with replacing_directory(target) as scratch:
            _merge(checkpoint.folder, scratch)
    return target


def _merge(shards: Path, target: Path) -> None:
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    command += ["--local_dir", str(shards), "--target_dir", str(target)]
    merged = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if merged.returncode != 0 or not _files(target, WEIGHTS):
        words = merged.stdout.decode("utf-8", "replace").strip()[-_LAST_WORDS:]
        raise ConfigError(f"veRL's merger failed for {shards} with status {merged.returncode}: {words}")


def _steps(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if _STEP.fullmatch(path.name)] if parent.is_dir() else []


def _number(step: Path) -> int:
    return int(step.name.rpartition("_")[2])


def _files(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file())  # no pipe


def _digest(files: list[Path]) -> str:
    """Digest both ends of each file, since training changes every weight: a whole large model would take minutes."""
    digest = sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES), os.SEEK_SET)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
