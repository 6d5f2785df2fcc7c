"""The command line of a benchmark, and what becomes of its figures: a table on the screen, and JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo_verl.lib.files import write_whole

RESULTS = Path(__file__).with_name("results")
os.environ.setdefault("ARPO_VERL_RUN", "1")  # what we change in veRL and vLLM is measured too
# For `policies`, of which some build theirs. What else is there needs pytest.
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))


class Arguments(argparse.ArgumentParser):
    """The arguments that benchmarks have in common; each adds its own.

    Args:
        description: the benchmark's docstring.
        smoke: what `--smoke` shrinks it to; without it, there is no `--smoke`.
        name: of the file of results, where it is not the script's.
    """

    def __init__(self, description: str | None, smoke: str = "", name: str = "") -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._sizes: dict[str, tuple[int, int]] = {}
        results = RESULTS / f"{name or Path(sys.argv[0]).stem}.json"
        if smoke:
            self.add_argument("--smoke", action="store_true", help=f"{smoke}: does it run at all")
        self._results = results
        words = "write the figures there; without a path into benchmarks/results"
        self.add_argument("--json", type=Path, nargs="?", const=results, metavar="PATH", help=words)

    def add_size(self, flag: str, full: int, smoke: int, words: str) -> None:
        """A number that has another default with `--smoke`."""
        action = self.add_argument(
            flag, type=int, metavar="N", help=f"{words}; {full} by default, {smoke} with --smoke"
        )
        self._sizes[action.dest] = full, smoke

    def parse(self) -> argparse.Namespace:
        """What the command line says, with every size.

        From here on a benchmark that is told to end by SIGTERM closes what it has open: desktops, Ray, a trainer.
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        arguments = self.parse_args()
        if getattr(arguments, "smoke", False) and arguments.json == self._results:
            self.error("--smoke needs --json PATH: benchmarks/results has the figures of whole runs")
        for name, (full, smoke) in self._sizes.items():
            if getattr(arguments, name) is None:
                setattr(arguments, name, smoke if arguments.smoke else full)
        return arguments


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that do nothing but compute, meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def machine() -> dict[str, float]:
    """What a figure is to be read with."""
    return {"cores": len(os.sched_getaffinity(0)), "load_before": os.getloadavg()[0]}


def report(figures: Mapping[str, Any], path: Path | None) -> None:
    """Show the figures, and write them."""
    show(figures)
    write(figures, path)


def show(figures: Mapping[str, Any]) -> None:
    """Print a line a figure."""
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:{width}} {value:.4f}" if isinstance(value, float) else f"{name:{width}} {value}")


def write(figures: Mapping[str, Any] | Sequence[Any], path: Path | None) -> None:
    """Write the figures as JSON where `--json` asked for it."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(figures, indent=2) + "\n").encode())
