"""Hold this package's version, and which versions of other packages are tested and installed."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from arpo_verl.errors import MissingDependencyError

__version__ = "0.1.0"

# The veRL releases that pass the whole suite, oldest first. No others are supported: veRL moves its plugin points in
# patch releases too.
SUPPORTED_VERL = ("0.9.1",)

# The versions that the newest veRL was tested with.
TESTED = {
    "verl": SUPPORTED_VERL[-1],
    "torch": "2.11.0",
    "transformers": "5.9.0",
    "desktop-env": "1.0.2",
}
OSWORLD_COMMIT = "b138d348256078fa634fc3b73567a7337c793e6b"
"""Commit of github.com/xlang-ai/OSWorld, 15 September 2026, whose task files `arpo-verl fetch-tasks` brings."""
OSWORLD_ARCHIVE = f"https://codeload.github.com/xlang-ai/OSWorld/tar.gz/{OSWORLD_COMMIT}"
OPTIONAL = ("ray", "docker", "qwen-vl-utils", "pillow", "numpy", "tensordict")

# The oldest versions that work. TransferQueue: as in veRL's own extras. vLLM: before 0.22 its cache of processed images
# does not survive the pauses for new weights (vllm-project/vllm#43001).
OLDEST = {"TransferQueue": "0.1.10", "vllm": "0.22.0"}
# The newest versions that runs were trained with here, vLLM's on a CPU, and the newest that tests pass with
# (docs/versions.md says which). A newer one is used, and a line says so.
TRAINED = {"torch": TESTED["torch"], "transformers": TESTED["transformers"], "ray": "2.60.0", "vllm": "0.24.0"}
NEWEST = {"torch": "2.15.0", "transformers": "5.22.2", "ray": "2.60.0", "vllm": "0.32.0"}
# The first versions that are known not to work, and why.
BROKEN = {"transformers": ("5.23", "veRL 0.9.1 cannot import its Qwen-VL models with it")}
OWN_CACHES = "0.31"
"""The first vLLM whose own caches of processed images are used instead of ours (docs/vllm.md)."""
# What a run on GPUs needs beside veRL, and for what. veRL 0.9.1's extras pin vllm 0.24.0, flash-attn 2.8.3 and a CuPy
# for CUDA 13, which torch 2.11 is built for.
FOR_GPUS = {
    "vllm": "the OSWorld recipes' rollout engine",
    "flash-attn": "the trainer's attention and log-probs",
    "cupy-cuda13x": "weights between nodes in osworld_full_async",
}
# The same package for other versions of CUDA, under other names.
OTHER_BUILDS = {"cupy-cuda13x": ("cupy-cuda12x", "cupy")}
# The extra of setup.py that brings a module which some commands need.
EXTRA_OF_MODULE = {
    **dict.fromkeys(("hydra", "omegaconf", "ray", "tensordict", "tokenizers", "torch", "torchvision"), "trainer"),
    **dict.fromkeys(("transformers", "verl"), "trainer"),
    "Xlib": "desktop",
    "qemu": "vm",
}
EASYR1 = "EasyR1"
"""What `another_verl` returns for stock EasyR1, for which we have `arpo_verl/easyr1/`."""
OWN_ENVIRONMENT = (
    "make a separate environment for veRL and arpo_verl (docs/migration.md); installing veRL here would overwrite "
    "that package"
)


def installed_version(package: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def pip_install(*requirements: str, options: Sequence[str] = ()) -> str:
    """Return the command that installs these packages, ready to type. Every message with such a command uses it.

    It never names arpo-verl itself: on a public index that name may belong to somebody else.
    """
    return shlex.join(["pip", "install", *options, *requirements])


def install_for_gpus() -> str:
    """Return the commands that install veRL with all of `FOR_GPUS`, in an order that works.

    flash-attn is published only as source, and its build imports torch: so torch comes first, without build isolation,
    and with it what a build needs: a new environment of Python 3.12 has neither wheel nor setuptools.
    """
    verl = SUPPORTED_VERL[-1]
    first = pip_install("wheel", "setuptools", "ninja", "packaging", "psutil", f"verl[vllm]=={verl}")
    return f"{first} && {pip_install(f'verl[vllm,fsdp]=={verl}', options=['--no-build-isolation'])}"


def extra_requirements(extra: str) -> list[str]:
    """Return the packages of one of arpo-verl's extras, from its metadata; none if arpo-verl is not installed."""
    try:
        lines = metadata.requires("arpo-verl") or []
    except metadata.PackageNotFoundError:
        return []
    ours = re.compile(rf"extra\s*==\s*['\"]{extra}['\"]")
    return [line.partition(";")[0].strip() for line in lines if ours.search(line.partition(";")[2])]


def install_extra(extra: str) -> str:
    """Return the command that installs an extra's packages, however arpo-verl itself was installed."""
    packages = extra_requirements(extra)
    return pip_install(*(packages or [f"{Path(__file__).parents[1]}[{extra}]"]))


def require_recipe_reader() -> None:
    """Refuse to compose a recipe without Hydra, and say how little is enough beside a wheel.

    Raises:
        MissingDependencyError: there is no Hydra.
    """
    if installed_version("hydra-core") is None and another_verl() is None:
        verl_alone = pip_install(f"verl=={SUPPORTED_VERL[-1]}", options=["--no-deps"])
        raise MissingDependencyError(
            f"this needs hydra-core, which the extra `recipes` brings, and veRL's files; {install_extra('recipes')} && "
            f"{verl_alone}"
        )


def explain_missing(module: str | None) -> str | None:
    """Explain in one sentence that a module could not be imported; return None if no extra brings it."""
    root = (module or "").partition(".")[0]
    extra = EXTRA_OF_MODULE.get(root)
    return None if extra is None else f"this needs {root}, which the extra `{extra}` brings; {install_extra(extra)}"


def is_older(installed: str, oldest: str) -> bool:
    """Return whether a release is older than `oldest`, by the numbers at its beginning."""
    first, second = ([int(n) for n in re.findall(r"\d+", version)[:3]] for version in (installed, oldest))
    return first < second


def describe_untested() -> str | None:
    """Return one line about installed packages that are newer than any that trained here; None if there are none."""
    installed = {package: installed_version(package) for package in TRAINED}
    newer = [
        f"{package} {version} (newest in training: {TRAINED[package]}, in tests: {NEWEST[package]})"
        for package, version in installed.items()
        if version is not None and is_older(TRAINED[package], version)
    ]
    return f"untested in training: {', '.join(newer)}" if newer else None


def describe_broken(package: str) -> str | None:
    """Return why the installed version of a package does not work; None if it does, as far as we know."""
    installed = installed_version(package)
    if installed is None or package not in BROKEN or is_older(installed, BROKEN[package][0]):
        return None
    first, why = BROKEN[package]
    return f"{installed}; from {first} on {why}"


def another_verl() -> str | None:
    """Return which other project's package `import verl` would find here, or None. It does not import it.

    EasyR1 and its forks install under veRL's name, with versions of their own (0.2.0.dev, 0.3.3.dev0); so may a folder
    that is only on the path. Their files distinguish them: veRL has `verl/trainer/main_ppo.py`, EasyR1 has `main.py`
    and `config.py`, and the ARPO reference adds `replay_buffer.py`.
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
    """Return the folder in which veRL is installed, without importing it.

    Raises:
        MissingDependencyError: it is absent, or not supported.
    """
    require_verl()
    spec = importlib.util.find_spec("verl")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def is_supported_verl(installed: str) -> bool:
    """Return whether this is a supported release, also if built from one (`+local`) or repackaged (`.postN`)."""
    return installed.split("+")[0].split(".post")[0] in SUPPORTED_VERL


def require_verl() -> None:
    """Refuse a veRL whose plugin points were never tested: a silent mismatch would cost a training run.

    Raises:
        MissingDependencyError: veRL is absent, of an unsupported release, or another project's package; or a package is
            known not to work with it.
    """
    installed, newest = installed_version("verl"), SUPPORTED_VERL[-1]
    if (other := another_verl()) is not None:
        raise MissingDependencyError(f"the package `verl` here is {other}; {OWN_ENVIRONMENT}")
    if installed is None:
        raise MissingDependencyError(f"verl=={newest} is not installed; {pip_install(f'verl=={newest}')}")
    if not is_supported_verl(installed):
        raise MissingDependencyError(
            f"arpo_verl {__version__} supports veRL {', '.join(SUPPORTED_VERL)}, got {installed}, whose plugin points "
            f"were never tested; {pip_install(f'verl=={newest}')}, or use a newer arpo_verl"
        )
    for package in BROKEN:
        if (why := describe_broken(package)) is not None:
            raise MissingDependencyError(f"{package} {why}; {pip_install(f'{package}=={TESTED[package]}')}")
