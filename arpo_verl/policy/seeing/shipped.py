"""The trained policy that comes with the package: its files, and a model folder made of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from arpo_verl.errors import ConfigError
from arpo_verl.files import replacing_directory

FOLDER = Path(__file__).parents[1] / "seeing_weights"
SHIPPED: Mapping[str, str] = MappingProxyType(
    {
        "chat_template.jinja": "a0bc6f6fc7a29a80017a433e8f03a1cc1236e838a944a2d034295a60c4f2fddb",
        "config.json": "b70bc22d935ea0e21d22de53eb147ac8b39436506a9a9f6ee53112b8f63a8084",
        "generation_config.json": "2d66b47e0b787849acd52a4daeab587f8da16d3e92befb405c3d6a3f1d2a304f",
        "model.safetensors": "9c39a4cad405699f59f482d73e45d2cc7f592a21df1b44fbb644c1640d5df9f1",
        "processor_config.json": "9eb0d754fcd2170a4fa990337c0cbe988ccce0b0f819ef71274569db58c20390",
        "tokenizer.json": "9846dd7cce8a01dab4743412533270d35800a79cc10a30236cdb3f3e90d1f2f4",
        "tokenizer_config.json": "7f67d64d0645a823c50f2880180b41c7e4dc79a5ffd85e226e1daa4633e592ea",
    }
)
"""Each file's SHA-256, as `ship` returned it."""
_WEIGHTS = "model.safetensors"


def check_shipped(folder: Path = FOLDER, sums: Mapping[str, str] = SHIPPED) -> None:
    """See that each file is the one that was shipped.

    Raises:
        ConfigError: one is missing or has other bytes.
    """
    missing = [name for name in sums if not (folder / name).is_file()]
    changed = [name for name in sums if name not in missing and _digest(folder / name) != sums[name]]
    for names, what in ((missing, "missing"), (changed, "other bytes than were shipped")):
        if names:
            raise ConfigError(
                f"the shipped policy in {folder} must be whole: {', '.join(names)}: {what}; install it anew"
            )


def check_out(out: Path) -> None:
    """See that a policy may be written as `out`, whose files it replaces.

    Raises:
        ConfigError: it holds, or is, something else.
    """
    other = [str(out)] if out.is_symlink() or (out.exists() and not out.is_dir()) else []
    if not other and out.exists():
        other = sorted(path.name for path in out.iterdir() if path.name not in SHIPPED)
    if other:
        raise ConfigError(f"--out must be a new folder, an empty one or such a policy's, {out} has {', '.join(other)}")


def write_shipped(out: Path, folder: Path = FOLDER, sums: Mapping[str, str] = SHIPPED) -> None:
    """Write the shipped policy as a model folder, its weights as float32.

    Raises:
        ConfigError: as `check_shipped` and `check_out`.
    """
    from safetensors.torch import load_file, save_file

    check_shipped(folder, sums)
    check_out(out)
    with replacing_directory(out) as scratch:
        for name in sums:
            shutil.copyfile(folder / name, scratch / name)
        weights = {name: tensor.float() for name, tensor in load_file(folder / _WEIGHTS).items()}
        save_file(weights, scratch / _WEIGHTS, metadata={"format": "pt"})
        shutil.copymode(scratch / "config.json", scratch / _WEIGHTS)  # else it is its owner's alone


def ship(model_folder: Path, folder: Path = FOLDER) -> dict[str, str]:
    """Make the files to ship from a model folder, the weights in half precision; returns what `SHIPPED` must be."""
    from safetensors.torch import load_file, save_file

    with replacing_directory(folder) as scratch:
        for path in sorted(model_folder.iterdir()):
            if path.name != _WEIGHTS:
                shutil.copyfile(path, scratch / path.name)
        weights = {name: tensor.half() for name, tensor in load_file(model_folder / _WEIGHTS).items()}
        save_file(weights, scratch / _WEIGHTS, metadata={"format": "pt"})
    return {path.name: _digest(path) for path in sorted(folder.iterdir())}


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()
