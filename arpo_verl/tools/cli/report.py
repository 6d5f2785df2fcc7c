"""`arpo-verl report RUN` writes one HTML file with a run's results."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "report",
        description="Writes one HTML file that opens from disk, needs no network and can be printed or sent. "
        "Works on running, resumed and old runs, and says what it cannot show.",
    )
    parser.add_argument("path", type=Path, metavar="RUN", help="a recipe's run_dir, or its trajectories folder")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: report.html in the run's folder")


def run(args: argparse.Namespace) -> int:
    from arpo_verl.records.run import open_run
    from arpo_verl.tools.viewer.report import write_report

    opened = open_run(args.path)
    file = args.out or opened.run_dir / "report.html"
    size = write_report(opened, file)
    print(f"{file} ({size / 1024:.0f} KiB)")
    return 0
