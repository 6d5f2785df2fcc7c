"""This package's version, and which versions of the packages that it leans on were tested and are installed."""

from __future__ import annotations

from importlib import metadata

from arpo_verl.errors import MissingDependencyError

__version__ = "0.1.0"

# The newest veRL on PyPI at the time of writing; the guard tests say what in it we lean on.
TESTED = {
    "verl": "0.9.1",
    "torch": "2.11.0",
    "transformers": "5.9.0",
    "desktop-env": "1.0.2",
}
OPTIONAL = ("vllm", "ray", "docker", "qwen-vl-utils", "pillow", "numpy")


def installed_version(package: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_tested_verl(installed: str) -> bool:
    """Whether this veRL is of the tested minor version: its plugin points may move with the next."""
    return installed.split(".")[:2] == TESTED["verl"].split(".")[:2]


def require_verl() -> None:
    """Refuse a veRL whose plugin points were never tested: a silent mismatch costs a training run.

    Raises:
        MissingDependencyError: veRL is absent or of another minor version.
    """
    installed, tested = installed_version("verl"), TESTED["verl"]
    if installed is None:
        raise MissingDependencyError(f"verl=={tested} is not installed; pip install verl=={tested}")
    if not is_tested_verl(installed):
        raise MissingDependencyError(
            f"this recipe needs veRL {'.'.join(tested.split('.')[:2])}.x, got {installed}; pip install verl=={tested}"
        )
