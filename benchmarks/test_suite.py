"""How long does `make test` take, and does it ever fail by chance?

    python benchmarks/test_suite.py [--smoke] [--json PATH] [--runs N]

Runs the whole suite several times in a row, each time in another random order, as `make test` does. The first half of
the runs is beside two processes that are always busy. `seconds` is the median of the quiet runs, from the command to
its end; `failures` are of all runs, and a failed test is printed with the seed of its order. The file of `--json` has
each run as soon as it ended, and the same command goes on with the missing runs of the same commit.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from figures import Arguments, busy, show, write

ROOT = Path(__file__).parents[1]
COUNT = re.compile(r"(\d+) (passed|failed|error)")


def main() -> None:
    """Run the suite and report."""
    parser = Arguments(__doc__, "two runs of a few tests")
    parser.add_size("--runs", 10, 2, "runs, of which the first half is beside busy processes")
    parser.add_size("--busy", 2, 2, "busy processes that it starts; 0 if others are busy beside the first half")
    arguments = parser.parse()
    tests = ["tests/agent/rollout/test_chat.py"] if arguments.smoke else []
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    kind = {"commit": git.stdout.strip(), "smoke": arguments.smoke}
    rows = read_runs(arguments.json, kind)
    for seed in range(arguments.runs):
        run = {"seed": seed, "busy": seed < arguments.runs / 2, **kind}
        if any(run.items() <= row.items() for row in rows):
            continue
        with busy(arguments.busy if run["busy"] else 0):
            began = time.monotonic()
            counts = _run(seed, tests)
            seconds = round(time.monotonic() - began)
        print(
            f"run {seed + 1} of {arguments.runs}, {'busy' if run['busy'] else 'quiet'}: {seconds} s, {counts}",
            flush=True,
        )
        rows.append({**run, "seconds": seconds, "counts": counts})
        write(summarize(rows), arguments.json)
    show({name: value for name, value in summarize(rows).items() if name != "each"})


def read_runs(path: Path | None, kind: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Read the runs that an earlier call noted, if they are of this kind."""
    rows = json.loads(path.read_text()).get("each", []) if path is not None and path.is_file() else []
    return [row for row in rows if kind.items() <= row.items()]


def summarize(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of the runs so far, and the runs."""
    quiet_s = [row["seconds"] for row in rows if not row["busy"]]
    return {
        "seconds": round(statistics.median(quiet_s)) if quiet_s else None,
        "runs": len(rows),
        "failures": sum(row["counts"].get("failed", 0) + row["counts"].get("error", 0) for row in rows),
        "tests": rows[-1]["counts"].get("passed", 0),
        "each": list(rows),
    }


def _run(seed: int, tests: list[str]) -> dict[str, int]:
    """Run it once, in the order of this seed; how many tests passed, failed, or had an error outside of them."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "-q", f"--randomly-seed={seed}", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"seed {seed}: {line}", flush=True)
    counts = {word: int(number) for number, word in COUNT.findall("".join(done.stdout.splitlines()[-1:]))}
    if done.returncode != 0 and not counts.keys() & {"failed", "error"}:
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return counts


if __name__ == "__main__":
    main()
