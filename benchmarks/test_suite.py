"""How long does `make test` take, and does it ever fail by chance?

    python benchmarks/test_suite.py [--smoke] [--json PATH] [--runs N]

Runs the whole suite several times in a row, each time in another random order, as `make test` does. The first half of
the runs is beside two processes that are always busy. `seconds` is the median of the quiet runs, from the command to
its end; `failures` are of all runs, and a failed test is printed with the seed of its order.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

from figures import Arguments, busy, report

ROOT = Path(__file__).parents[1]
NUM_BUSY = 2
COUNT = re.compile(r"(\d+) (passed|failed|error)")


def main() -> None:
    """Run the suite and report."""
    parser = Arguments(__doc__, "two runs of a few tests")
    parser.add_size("--runs", 10, 2, "runs, of which the first half is beside busy processes")
    arguments = parser.parse()
    tests = ["tests/agent/rollout/test_chat.py"] if arguments.smoke else []
    quiet_s, failures, passed = [], 0, 0
    for number in range(arguments.runs):
        is_quiet = number >= arguments.runs / 2
        with busy(0 if is_quiet else NUM_BUSY):
            began = time.monotonic()
            counts = _run(number, tests)
            seconds = time.monotonic() - began
        print(
            f"run {number + 1} of {arguments.runs}, {'quiet' if is_quiet else 'busy'}: {seconds:.0f} s, {counts}",
            flush=True,
        )
        quiet_s += [seconds] * is_quiet
        failures += counts.get("failed", 0) + counts.get("error", 0)
        passed = counts.get("passed", 0)
    figures = {"seconds": round(statistics.median(quiet_s)), "runs": arguments.runs}
    report({**figures, "failures": failures, "tests": passed}, arguments.json)


def _run(seed: int, tests: list[str]) -> dict[str, int]:
    """Run it once, in the order of this seed; how many tests passed, failed, or had an error outside of them."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "-q", f"--randomly-seed={seed}", *tests]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"seed {seed}: {line}", flush=True)
    counts = {word: int(number) for number, word in COUNT.findall(done.stdout.splitlines()[-1])}
    if done.returncode != 0 and not counts.keys() & {"failed", "error"}:
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return counts


if __name__ == "__main__":
    main()
