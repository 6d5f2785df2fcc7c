"""`make test-verl`: the contracts and the pure part of the suite on every veRL release that may be supported.

Asks the package index for releases from the oldest supported one on, pre-releases too, or takes those that are named: a
version, or the folder of a checkout. Each gets an environment of its own in .cache, with what the extra `trainer` pins
for the newest supported release; any other says itself what torch and Transformers it takes. Prints a table, and ends
with 1 where something failed. A new release that passes here and in the whole suite goes into
`arpo_verl/versions.py: SUPPORTED_VERL` and docs/versions.md.

    python tests/upstream/releases.py --pure tests/replay ... [--releases VERSION|FOLDER ...] [--pytest OPTION ...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from arpo_verl.versions import SUPPORTED_VERL

ROOT = Path(__file__).parents[2]
UV = Path(sys.prefix, "bin", "uv")
SHOWN = ("verl", "torch", "transformers", "ray", "TransferQueue", "tensordict")


@dataclass(frozen=True)
class Result:
    """What came of one release."""

    release: str
    versions: dict[str, str]
    parts: dict[str, str]
    """pytest's last line, by part."""
    passed: bool


def offered() -> list[str]:
    """The index's releases from the oldest supported one on, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "verl", "--pre", "--disable-pip-version-check"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    versions = re.search(r"^Available versions: (.+)$", said, re.M)
    if versions is None:
        raise RuntimeError(f"`pip index versions verl` must list versions, said {said!r}")
    known = sorted(versions[1].split(", "), key=Version)
    return [version for version in known if Version(version) >= Version(SUPPORTED_VERL[0])]


def _is_of(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is not None and requirement.marker.evaluate({"extra": extra})


def make_environment(release: str) -> Path:
    """An environment with this release beside the package; one that is there is brought up to date.

    Returns:
        Its Python.
    """
    folder = ROOT / ".cache" / f"verl-{Path(release).name}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    verl = f"verl @ {Path(release).resolve().as_uri()}" if Path(release).is_dir() else f"verl=={release}"
    extra = [r for r in map(Requirement, metadata.requires("arpo-verl") or ()) if _is_of(r, "trainer")]
    is_newest = release == SUPPORTED_VERL[-1]
    trainer = [f"{r.name}{r.specifier if is_newest else ''}" for r in extra if r.name != "verl"]
    wanted = [verl, *trainer, "pytest", "hypothesis", "-e", ".[osworld,desktop,view]"]
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, *wanted], cwd=ROOT, check=True)
    with_uv = {**os.environ, "PATH": os.pathsep.join([str(UV.parent), os.environ["PATH"]])}
    command = [folder / "bin" / "arpo-verl", "install-osworld", "--installer", "uv"]
    subprocess.run(command, env=with_uv, check=True, stdout=subprocess.DEVNULL)
    return python


def test(release: str, pure: Sequence[str], options: Sequence[str]) -> Result:
    """Run both parts on one release."""
    python = make_environment(release)
    ask = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {SHOWN}}}))"
    versions = json.loads(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout)
    parts, passed = {}, True
    for name, tests in {"contracts": ["tests/upstream"], "pure": pure}.items():
        command = [python, "-m", "pytest", "-q", "-m", "not desktop", *tests, *options]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = done.stdout.splitlines()
        parts[name] = next(
            (line for line in reversed(lines) if re.search(r"\d (passed|failed|error)", line)), "nothing"
        )
        passed &= done.returncode == 0
        print("\n".join(line for line in lines if line.startswith(("FAILED", "ERROR"))), flush=True)
    return Result(release, versions, parts, passed)


def main() -> int:
    """Test the releases and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", nargs="*", help="versions or checkouts; default: all that the index offers")
    parser.add_argument("--pure", nargs="+", required=True, help="folders of the pure part")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], help="pytest's own options, last")
    args = parser.parse_args()
    results = [test(release, args.pure, args.pytest) for release in args.releases or offered()]
    print(f"\n| {' | '.join(SHOWN)} | contracts | pure part |\n|{'---|' * (len(SHOWN) + 2)}")
    for result in results:
        print(f"| {' | '.join([*result.versions.values(), *result.parts.values()])} |")
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
