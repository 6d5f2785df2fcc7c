"""`make test-engines`: the contracts and the pure part of the suite on each set of versions that may be supported.

A set is what uv resolves today for veRL's requirements, or for others in their place, in an environment of its own in
.cache. `SETS` has those of docs/versions.md, whose table and benchmarks/results/engines.json are written from what ran.
`--releases` takes releases of veRL instead, or folders of checkouts, with what they ask for, and only prints the table.
Ends with 1 where something failed. A new release that passes here and in the whole suite goes into
`arpo_verl/versions.py: SUPPORTED_VERL` and docs/versions.md.

    python tests/upstream/releases.py --pure tests/replay ... [--releases VERSION|FOLDER ...] [--pytest OPTION ...]
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
SHOWN = ("verl", "torch", "transformers", "ray", "TransferQueue", "tensordict")
RESULTS = ROOT / "benchmarks" / "results" / "engines.json"
TABLE = ROOT / "docs" / "versions.md"
BORDERS = ("<!-- written by `make test-engines` -->\n", "<!-- until here -->\n")

SETS: dict[str, tuple[str, ...]] = {
    "newest": (f"transformers>={TESTED['transformers']},<{BROKEN['transformers'][0]}",),
    "pip install": (),
    "pinned": tuple(f"{name}=={TESTED[name]}" for name in ("torch", "transformers")),
}
"""By name, what takes the place of veRL's own requirements; the newest first."""
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


def test(name: str, verl: str, instead: Sequence[str], pure: Sequence[str], options: Sequence[str]) -> Result:
    """Run both parts on one set."""
    python = make_environment(name, verl, instead)
    ask = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {SHOWN}}}))"
    versions = json.loads(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout)
    parts, failed = {}, []
    for part, tests in {"contracts": ["tests/upstream"], "pure": pure}.items():
        command = [python, "-m", "pytest", "-q", "-m", "not desktop", *tests, *options]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
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
    head = ["set", "Python", *SHOWN, "contracts", "pure part", "ran"]
    rows = [
        [r.set, r.python, *r.versions.values(), *r.parts.values(), f"{r.date}{': ' if r.fault else ''}{r.fault}"]
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
    parser.add_argument("--pure", nargs="+", required=True, help="folders of the pure part")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], help="pytest's own options, last")
    args = parser.parse_args()
    sets = [(f"verl {Path(release).name}", release, ()) for release in args.releases or ()]
    sets = sets or [(name, SUPPORTED_VERL[-1], instead) for name, instead in SETS.items()]
    results = []
    for each in sets:
        results.append(test(*each, args.pure, args.pytest))
        if not args.releases:
            write(results[-1])
    print(f"\n{table(results)}")
    return 1 if any(result.failed for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
