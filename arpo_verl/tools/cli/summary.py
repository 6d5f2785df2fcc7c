"""`arpo-verl summary RUN_DIR` prints a run's results, from its metrics file, or what it does before it has any."""

from __future__ import annotations

import argparse
from pathlib import Path

from arpo_verl.lib.config import require
from arpo_verl.records.layout import OUTPUT_FILE


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("summary")
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="the recipe's run_dir, for example runs/embedded")


def run(args: argparse.Namespace) -> int:
    from arpo_verl.records.run_summary import format_summary, summarize_run
    from arpo_verl.records.starting import read_start

    require(args.run_dir.is_dir(), "RUN", "a run's folder", str(args.run_dir), "a run prints it when it starts")
    start = read_start(args.run_dir)
    if start is None:
        print(format_summary(summarize_run(args.run_dir)))
    else:
        print(f"no training step yet: the run {start.phase}\noutput: {args.run_dir / OUTPUT_FILE}")
    return 0
