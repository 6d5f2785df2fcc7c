"""This package's version, and which versions of the packages that it leans on were tested and are installed."""

from __future__ import annotations

from importlib import metadata

from arpo_verl.errors import MissingDependencyError

__version__ = "0.1.0"

# The veRL releases that the whole suite passes on, oldest first. One is supported by being here, and no other: veRL
# moves its plugin points in patch releases too.
SUPPORTED_VERL = ("0.9.1",)

# What the newest was run with.
TESTED = {
    "verl": SUPPORTED_VERL[-1],
    "torch": "2.11.0",
    "transformers": "5.9.0",
    "desktop-env": "1.0.2",
}
OPTIONAL = ("vllm", "ray", "docker", "qwen-vl-utils", "pillow", "numpy", "TransferQueue", "tensordict")


def installed_version(package: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_supported_verl(installed: str) -> bool:
    """Whether this is a supported release; what was built of it (`+local`) or packed anew (`.postN`) is one too."""
    return installed.split("+")[0].split(".post")[0] in SUPPORTED_VERL


def require_verl() -> None:
    """Refuse a veRL whose plugin points were never tested: a silent mismatch costs a training run.

    Raises:
        MissingDependencyError: veRL is absent or of an unsupported release.
    """
    installed, newest = installed_version("verl"), SUPPORTED_VERL[-1]
    if installed is None:
        raise MissingDependencyError(f"verl=={newest} is not installed; pip install verl=={newest}")
    if not is_supported_verl(installed):
        raise MissingDependencyError(
            f"arpo_verl {__version__} supports veRL {', '.join(SUPPORTED_VERL)}, got {installed}, on which its plugin "
            f"points were never tested; pip install verl=={newest}, or a newer arpo_verl"
        )
