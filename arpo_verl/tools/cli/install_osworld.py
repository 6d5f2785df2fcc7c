"""`arpo-verl install-osworld` installs OSWorld's client without changing the versions of other packages.

`desktop-env` pins numpy<2, torch 2.5 and transformers 4.35, and pyautogui requires a package that overwrites
python-xlib. All of them work without those pins. So we install what they import, with constraints that fix every
existing package, and then them without their dependencies. We compare versions before and after.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from arpo_verl.errors import ArpoError, MissingDependencyError
from arpo_verl.tools.cli.checks.packages import check_osworld
from arpo_verl.versions import TESTED, extra_requirements, pip_install

# The packages installed without dependencies: the client, then those of the embedded desktop's guest.
NO_DEPS = {
    "desktop-env": TESTED["desktop-env"],
    "pyautogui": "0.9.54",
    "pymsgbox": "2.0.1",
    "pytweening": "1.2.0",
    "pyscreeze": "1.0.1",
    "mouseinfo": "0.1.3",
    "pyperclip": "1.11.0",
}
# The packages that users ask about first; we compare all others too.
SHOWN = ("numpy", "torch", "transformers", "verl", "vllm", "ray")

_VERSIONS = "import importlib.metadata as m, json; print(json.dumps([(d.name, d.version) for d in m.distributions()]))"


class PackagesMovedError(ArpoError, RuntimeError):
    """The installation changed existing packages."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("install-osworld")
    parser.add_argument("--python", default=sys.executable, help="Python to install for (default: this one)")


def run(args: argparse.Namespace) -> int:
    """Print the plan, install, and check that no version changed and that the client imports."""
    before = installed_versions(args.python)
    uv = find_uv()
    if uv is None and "pip" not in before:
        raise MissingDependencyError(f"{args.python} has no pip; put uv on the PATH, or {args.python} -m ensurepip")
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(constraint_lines(before), encoding="utf-8")
        commands = plan(args.python, uv, constraints)
        print(f"installing for {args.python}, without changing its {len(before)} packages:")
        for command in commands:
            print(f"  {shlex.join(command)}")
        for command in commands:
            _execute(command)
    after = installed_versions(args.python)
    check_nothing_moved(before, after)
    if not (found := check_osworld(args.python)).ok:
        raise MissingDependencyError(f"all is installed, but OSWorld's client {found.detail}; {found.remedy}")
    held = ", ".join(f"{name} {after[name]}" for name in SHOWN if name in after)
    print(f"{len(after) - len(before)} packages added, none changed ({held}); OSWorld's client imports")
    return 0


def plan(python: str, uv: str | None, constraints: Path) -> list[list[str]]:
    """Return the two commands: first for what the client imports, with constraints, then for `NO_DEPS` alone.

    Args:
        uv: the path of uv; None: pip installs.
    """
    install = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    if uv is not None:
        install = [uv, "pip", "install", "--quiet", "--python", python]
    pinned = [f"{name}=={version}" for name, version in NO_DEPS.items()]
    return [
        [*install, "--constraint", str(constraints), *extra_requirements("osworld"), *extra_requirements("desktop")],
        [*install, "--no-deps", *pinned],
    ]


def find_uv() -> str | None:
    """Return the path of uv if it is on the PATH or beside this Python."""
    beside = Path(sys.executable).with_name("uv")
    return shutil.which("uv") or (str(beside) if beside.exists() else None)


def installed_versions(python: str) -> dict[str, str]:
    """Return `{normalized name: version}` of the interpreter's packages.

    Raises:
        MissingDependencyError: there is no such Python.
    """
    try:
        listing = subprocess.run([python, "-c", _VERSIONS], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingDependencyError(f"--python must name a Python that runs, got {python!r}: {error}") from error
    # Of two packages with one name, Python imports the first on the path.
    return {_normal(name): version for name, version in reversed(json.loads(listing.stdout))}


def constraint_lines(versions: Mapping[str, str]) -> str:
    """Return a constraints file with every installed package except those of `NO_DEPS`."""
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()) if name not in NO_DEPS)


def check_nothing_moved(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Compare the existing packages, except `NO_DEPS`.

    Raises:
        PackagesMovedError: a version changed; the message has both versions, and how to restore them.
    """
    moved = {name: version for name, version in before.items() if name not in NO_DEPS and after.get(name) != version}
    if moved:
        changes = ", ".join(f"{name} {version} -> {after.get(name, 'gone')}" for name, version in moved.items())
        back = pip_install(*(f"{name}=={version}" for name, version in moved.items()), options=["--no-deps"])
        raise PackagesMovedError(f"the installation changed existing packages: {changes}; restore them: {back}")


def _execute(command: Sequence[str]) -> None:
    done = subprocess.run(command)
    if done.returncode != 0:
        raise MissingDependencyError(
            f"this command failed with status {done.returncode}, for the reason above: {shlex.join(command)}; if that "
            "is a conflict with an installed package, install for another Python (--python, and in the recipe "
            "environment.py_executable)"
        )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
