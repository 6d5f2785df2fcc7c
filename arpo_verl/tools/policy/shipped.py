"""Write the small policies in the package as model folders."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from arpo_verl.errors import ConfigError
from arpo_verl.lib.files import replacing_directory

FOLDER = Path(__file__).parent / "weights"
SHIPPED = {
    "embedded": "9205bace1179eca186492c5c69088f700a91a67fc88e2958a85d592510004a19",
    "seeing": "9c39a4cad405699f59f482d73e45d2cc7f592a21df1b44fbb644c1640d5df9f1",
}
"""The SHA-256 of each policy's weights. `git show 1872a385:benchmarks/make_policy.py` has what made them."""
WEIGHTS = "model.safetensors"


def check_out(out: Path, files: Collection[str]) -> None:
    """Check that a policy of these files may be written as `out`. It replaces the files of such a policy there.

    Raises:
        ConfigError: `out` contains, or is, something else.
    """
    other = [str(out)] if out.is_symlink() or (out.exists() and not out.is_dir()) else []
    if not other and out.exists():
        other = sorted(path.name for path in out.iterdir() if path.name not in files)
    if other:
        raise ConfigError(f"--out must be a new folder, an empty one or such a policy's; {out} has {', '.join(other)}")


def write_shipped(name: str, out: Path) -> None:
    """Write a shipped policy as a model folder, with weights in float32.

    Raises:
        ConfigError: as `check_out`.
    """
    from safetensors.torch import load_file, save_file

    files = [path.name for path in (FOLDER / name).iterdir()]
    check_out(out, files)
    with replacing_directory(out) as scratch:
        for file in files:
            shutil.copyfile(FOLDER / name / file, scratch / file)
        weights = {key: tensor.float() for key, tensor in load_file(FOLDER / name / WEIGHTS).items()}
        save_file(weights, scratch / WEIGHTS, metadata={"format": "pt"})
        shutil.copymode(scratch / "config.json", scratch / WEIGHTS)  # otherwise only its owner could read it
