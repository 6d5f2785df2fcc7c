"""This package's version, and which versions of the packages that it leans on were tested and are installed."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

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
OSWORLD_COMMIT = "b138d348256078fa634fc3b73567a7337c793e6b"
"""Of github.com/xlang-ai/OSWorld, 15 September 2026: the task files that `arpo-verl fetch-tasks` brings."""
OSWORLD_ARCHIVE = f"https://codeload.github.com/xlang-ai/OSWorld/tar.gz/{OSWORLD_COMMIT}"
OPTIONAL = ("ray", "docker", "qwen-vl-utils", "pillow", "numpy", "tensordict")

# The oldest that serve. TransferQueue: as veRL's own extras say. vLLM: before 0.22 its cache of processed images does
# not survive the pauses for new weights (vllm-project/vllm#43001).
OLDEST = {"TransferQueue": "0.1.10", "vllm": "0.22.0"}
# What a run on GPUs needs beside veRL, for what; veRL 0.9.1's extras pin vllm 0.24.0, flash-attn 2.8.3 and a CuPy for
# CUDA 13, for which torch 2.11 is built.
FOR_GPUS = {
    "vllm": "the OSWorld recipes' rollout engine",
    "flash-attn": "the trainer's attention and log-probs",
    "cupy-cuda13x": "weights between nodes in osworld_full_async",
}
# The same package for another CUDA, under a name of its own.
OTHER_BUILDS = {"cupy-cuda13x": ("cupy-cuda12x", "cupy")}
# Which extra of setup.py brings a module that some commands need.
EXTRA_OF_MODULE = {
    **dict.fromkeys(("hydra", "omegaconf", "ray", "tensordict", "tokenizers", "torch", "torchvision"), "trainer"),
    **dict.fromkeys(("transformers", "verl"), "trainer"),
    "Xlib": "desktop",
    "qemu": "vm",
}
EASYR1 = "EasyR1"
"""What `another_verl` calls stock EasyR1, for which `arpo_verl/easyr1/` is a door."""
OWN_ENVIRONMENT = (
    "make an environment of its own for veRL and arpo_verl (docs/migration.md); installing veRL here would overwrite "
    "that package"
)


def installed_version(package: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def pip_install(*requirements: str, options: Sequence[str] = ()) -> str:
    """The command that installs these packages, to type as it stands. Every message that names one takes it from here.

    It never names arpo-verl itself: on a public index that name may be somebody else's.
    """
    return shlex.join(["pip", "install", *options, *requirements])


def install_for_gpus() -> str:
    """The commands that bring veRL with all of `FOR_GPUS`, in the order in which they work.

    flash-attn is published as source alone, and its build imports torch: torch comes first, and the build must see it.
    """
    verl = SUPPORTED_VERL[-1]
    compiled = pip_install(f"verl[vllm,fsdp]=={verl}", options=["--no-build-isolation"])
    return f"{pip_install(f'verl[vllm]=={verl}')} && {compiled}"


def extra_requirements(extra: str) -> list[str]:
    """The packages of one of arpo-verl's extras, as its metadata has them; none where it is not installed."""
    try:
        lines = metadata.requires("arpo-verl") or []
    except metadata.PackageNotFoundError:
        return []
    ours = re.compile(rf"extra\s*==\s*['\"]{extra}['\"]")
    return [line.partition(";")[0].strip() for line in lines if ours.search(line.partition(";")[2])]


def install_extra(extra: str) -> str:
    """The command that installs an extra's packages; it works however arpo-verl itself was installed."""
    packages = extra_requirements(extra)
    return pip_install(*(packages or [f"{Path(__file__).parents[1]}[{extra}]"]))


def explain_missing(module: str | None) -> str | None:
    """One sentence about a module that could not be imported, or None where no extra brings it."""
    root = (module or "").partition(".")[0]
    extra = EXTRA_OF_MODULE.get(root)
    return None if extra is None else f"this needs {root}, which the extra `{extra}` brings; {install_extra(extra)}"


def is_older(installed: str, oldest: str) -> bool:
    """Whether a release comes before `oldest`, by the numbers at its beginning."""
    first, second = ([int(n) for n in re.findall(r"\d+", version)[:3]] for version in (installed, oldest))
    return first < second


def another_verl() -> str | None:
    """Which other project's package `import verl` finds here, or None; it is not imported for that.

    EasyR1 and what was forked from it install under veRL's name, with numbers of their own (0.2.0.dev, 0.3.3.dev0), and
    so may a folder that is only on the path. Their files distinguish them: veRL starts by
    `verl/trainer/main_ppo.py`, EasyR1 by `main.py` beside a `config.py`; the ARPO reference adds `replay_buffer.py`.
    """
    spec = importlib.util.find_spec("verl")
    if spec is None or spec.origin is None:
        return None
    trainer = Path(spec.origin).with_name("trainer")
    if trainer.joinpath("main_ppo.py").is_file():
        return None
    if not all(trainer.joinpath(name).is_file() for name in ("main.py", "config.py")):
        return "another project of that name: it has no verl/trainer/main_ppo.py"
    return "the ARPO reference, a fork of EasyR1" if trainer.joinpath("replay_buffer.py").is_file() else EASYR1


def verl_folder() -> Path:
    """Where veRL is installed; it is not imported for that.

    Raises:
        MissingDependencyError: it is absent, or not one that we support.
    """
    require_verl()
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def is_supported_verl(installed: str) -> bool:
    """Whether this is a supported release; what was built of it (`+local`) or packed anew (`.postN`) is one too."""
    return installed.split("+")[0].split(".post")[0] in SUPPORTED_VERL


def require_verl() -> None:
    """Refuse a veRL whose plugin points were never tested: a silent mismatch costs a training run.

    Raises:
        MissingDependencyError: veRL is absent, of an unsupported release, or another project's package of its name.
    """
    installed, newest = installed_version("verl"), SUPPORTED_VERL[-1]
    if (other := another_verl()) is not None:
        raise MissingDependencyError(f"the package `verl` here is {other}; {OWN_ENVIRONMENT}")
    if installed is None:
        raise MissingDependencyError(f"verl=={newest} is not installed; {pip_install(f'verl=={newest}')}")
    if not is_supported_verl(installed):
        raise MissingDependencyError(
            f"arpo_verl {__version__} supports veRL {', '.join(SUPPORTED_VERL)}, got {installed}, on which its plugin "
            f"points were never tested; {pip_install(f'verl=={newest}')}, or take a newer arpo_verl"
        )
