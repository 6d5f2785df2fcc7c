"""Check the small policies in the package, and write them as model folders."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from arpo_verl.errors import ConfigError
from arpo_verl.lib.files import replacing_directory

FOLDER = Path(__file__).parent / "weights"
SHIPPED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "embedded": {
            "chat_template.jinja": "a0bc6f6fc7a29a80017a433e8f03a1cc1236e838a944a2d034295a60c4f2fddb",
            "config.json": "d32afb4da662e70994d7b30c8948460264c0090ce97ae41ef09e81e56917c392",
            "generation_config.json": "c5b8b0c5657400cfe8dcd32904c901453538da03e27dda7b4113050af3bf18c6",
            "model.safetensors": "9205bace1179eca186492c5c69088f700a91a67fc88e2958a85d592510004a19",
            "processor_config.json": "c07dbbec7154a8cd3e16cd6e7efd4e7def6f9259292955c35e290ca9bbebecde",
            "tokenizer.json": "3133c8e4c946be5ac2c12e03c72673732f623d19f1fa5a0534c96609cfe2fbc1",
            "tokenizer_config.json": "7f67d64d0645a823c50f2880180b41c7e4dc79a5ffd85e226e1daa4633e592ea",
        },
        "seeing": {
            "chat_template.jinja": "a0bc6f6fc7a29a80017a433e8f03a1cc1236e838a944a2d034295a60c4f2fddb",
            "config.json": "b70bc22d935ea0e21d22de53eb147ac8b39436506a9a9f6ee53112b8f63a8084",
            "generation_config.json": "2d66b47e0b787849acd52a4daeab587f8da16d3e92befb405c3d6a3f1d2a304f",
            "model.safetensors": "9c39a4cad405699f59f482d73e45d2cc7f592a21df1b44fbb644c1640d5df9f1",
            "processor_config.json": "9eb0d754fcd2170a4fa990337c0cbe988ccce0b0f819ef71274569db58c20390",
            "tokenizer.json": "9846dd7cce8a01dab4743412533270d35800a79cc10a30236cdb3f3e90d1f2f4",
            "tokenizer_config.json": "7f67d64d0645a823c50f2880180b41c7e4dc79a5ffd85e226e1daa4633e592ea",
        },
    }
)
"""The SHA-256 of each policy's files. `git show 1872a385:benchmarks/make_policy.py` has what made them."""
WEIGHTS = "model.safetensors"


def check_shipped(name: str, folder: Path = FOLDER) -> None:
    """Check that each file of a policy is the one that was shipped.

    Raises:
        ConfigError: a file is missing or was changed.
    """
    sums, of_policy = SHIPPED[name], folder / name
    missing = [file for file in sums if not (of_policy / file).is_file()]
    changed = [file for file in sums if file not in missing and digest(of_policy / file) != sums[file]]
    for files, problem in ((missing, "missing"), (changed, "other bytes than were shipped")):
        if files:
            raise ConfigError(
                f"the shipped policy in {of_policy} must be complete: {', '.join(files)}: {problem}; reinstall it"
            )


def check_out(name: str, out: Path) -> None:
    """Check that a policy may be written as `out`. It replaces the files of such a policy there.

    Raises:
        ConfigError: `out` contains, or is, something else.
    """
    other = [str(out)] if out.is_symlink() or (out.exists() and not out.is_dir()) else []
    if not other and out.exists():
        other = sorted(path.name for path in out.iterdir() if path.name not in SHIPPED[name])
    if other:
        raise ConfigError(f"--out must be a new folder, an empty one or such a policy's; {out} has {', '.join(other)}")


def write_shipped(name: str, out: Path, folder: Path = FOLDER) -> None:
    """Write a shipped policy as a model folder, with weights in float32.

    Raises:
        ConfigError: in the cases of `check_shipped` and `check_out`.
    """
    from safetensors.torch import load_file, save_file

    check_shipped(name, folder)
    check_out(name, out)
    with replacing_directory(out) as scratch:
        for file in SHIPPED[name]:
            shutil.copyfile(folder / name / file, scratch / file)
        weights = {key: tensor.float() for key, tensor in load_file(folder / name / WEIGHTS).items()}
        save_file(weights, scratch / WEIGHTS, metadata={"format": "pt"})
        shutil.copymode(scratch / "config.json", scratch / WEIGHTS)  # otherwise only its owner could read it


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return sha256(path.read_bytes()).hexdigest()
