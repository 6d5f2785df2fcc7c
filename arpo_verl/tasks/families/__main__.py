"""Write generated tasks: `python -m arpo_verl.tasks.families --out DIR`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from arpo_verl.errors import TaskError
from arpo_verl.tasks.families.generation import SPLITS, write


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tasks that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m arpo_verl.tasks.families", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a new folder for DIR/tasks and DIR/replies.json")
    parser.add_argument("--split", choices=SPLITS, default=SPLITS[0], help="split of the seeds (default: %(default)s)")
    parser.add_argument("--count", type=_count, default=128, help="number of tasks (default: %(default)s)")
    parser.add_argument("--first", type=_count, default=0, help="number of the first task (default: %(default)s)")
    given = parser.parse_args(arguments)
    try:
        write(given.out, given.split, given.count, given.first)
    except (TaskError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{given.count} tasks of {given.split} in {given.out / 'tasks'}")
    return 0


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a whole number of 0 or more, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
