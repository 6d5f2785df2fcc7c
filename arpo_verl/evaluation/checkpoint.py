"""From the path that a user gives to a model's folder: a checkpoint of veRL's is merged by veRL's own merger."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from arpo_verl.errors import ConfigError
from arpo_verl.files import replacing_directory

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_SHARDS = "model_world_size_*_rank_*.pt"
_FSDP_FILE, _LORA_FILE = "fsdp_config.json", "lora_train_meta.json"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_STEP = re.compile(r"global_step_([0-9]+)")
_SAMPLE_BYTES = 1 << 20
_LAST_WORDS = 800


@dataclass(frozen=True)
class Checkpoint:
    """Where a model's weights lie.

    Attributes:
        name: what the user would call it: the model's folder, or the step's.
        folder: of the files.
        is_sharded: by FSDP, as veRL saves what it trains; else a folder that Transformers loads.
        weights: what differs between its weights and others: names, sizes and both ends of their files.
    """

    name: Path
    folder: Path
    is_sharded: bool
    weights: str

    @property
    def facts(self) -> dict[str, str]:
        """What it is, as JSON."""
        return {"model": str(self.name), "weights": self.weights}


def find_checkpoint(path: Path, option: str = "--model") -> Checkpoint:
    """What `path` means: a model's folder; a checkpoint's `actor`, the step's folder around it, or the folder of all
    steps or the run's, of which the newest step that is whole is taken: a run may be killed while it saves one.

    Args:
        option: that gave the path, for messages.

    Raises:
        ConfigError: none of these, or an adapter's.
    """
    if _HUB_NAME.fullmatch(str(path)) and not path.parent.exists():
        raise ConfigError(
            f"{option} must be a folder, got {path}, which is not here; where it is a name on the model hub, run "
            f"`hf download {path} --local-dir FOLDER`, then name FOLDER"
        )
    try:
        path = path.expanduser().resolve()
    except RuntimeError as error:  # links in a circle, or ~ of nobody
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
        f"global_step_N folder, with {_FSDP_FILE} in actor/), got {path}; Megatron's is merged first by "
        "`python -m verl.model_merger merge --backend megatron`"
    )


def _check_no_adapter(actor: Path, option: str) -> None:
    """veRL's merger writes an adapter apart from the weights that it began with, and those alone would be played."""
    if (actor / _LORA_FILE).is_file():
        raise ConfigError(
            f"{option} must be a checkpoint of whole weights, got one of LoRA, {actor}; join the two first: `python -m "
            "verl.model_merger merge` writes lora_adapter/, PEFT's merge_and_unload puts it into the weights"
        )


def place_of_model(checkpoint: Checkpoint, out: Path) -> Path:
    """Where `model_folder` finds the checkpoint as a folder that Transformers loads, or will put it."""
    return out / f"model-{checkpoint.weights[:12]}" if checkpoint.is_sharded else checkpoint.folder


def model_folder(checkpoint: Checkpoint, out: Path) -> Path:
    """The checkpoint as a folder that Transformers loads; shards are merged into `out`, once, whatever kills it.

    veRL's merger keeps weights in bfloat16, and unpickles the shards: only of a checkpoint that one trusts.

    Raises:
        ConfigError: the merger refuses them.
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
        raise ConfigError(f"veRL's merger must take {shards}, it ended with {merged.returncode}: {words}")


def _steps(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if _STEP.fullmatch(path.name)] if parent.is_dir() else []


def _number(step: Path) -> int:
    return int(step.name.rpartition("_")[2])


def _files(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(file for pattern in patterns for file in folder.glob(pattern) if file.is_file())  # no pipe


def _digest(files: list[Path]) -> str:
    """Training changes every weight, so both ends of a file show it: all of a large model would take minutes."""
    digest = sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE_BYTES))
            file.seek(max(0, size - _SAMPLE_BYTES), os.SEEK_SET)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]
