"""`arpo-verl tasks` shows tasks of a folder or a list, all or some, and writes a list to train on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arpo_verl.lib.untrusted import printable, printable_lines
from arpo_verl.tools.cli.options import add_environment_options, build_environment

if TYPE_CHECKING:
    from arpo_verl.types import Task

DESCRIPTION = """\
Shows the tasks of a source, all or some of them, and can write a list for
data.train_files and data.val_files.
"""
EPILOG = """examples:
  arpo-verl tasks /data/osworld --domain gimp vlc
  arpo-verl tasks /data/osworld --runs-here --provider docker --count 32 --out /data/osworld/subset_32.json

Tasks that your policy solves sometimes teach it most; `arpo-verl filter-tasks` finds them.
"""
_SHOWN = 90


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("tasks", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("source", help="a folder of task files, a list, a task, NAME:ARGUMENT, or embedded")
    parser.add_argument("--domain", nargs="+", metavar="NAME", help="only tasks of these domains")
    parser.add_argument(
        "--runs-here",
        action="store_true",
        help="only tasks that this machine can run on the desktops of --provider; `arpo-verl doctor --task-dir` shows "
        "what the others lack",
    )
    add_environment_options(parser)
    parser.add_argument("--count", type=int, metavar="N", help="only N of them, drawn at random")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of --count, which draws the same tasks each time (default: 0)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="file for the list, beside the folder `examples`")


def run(args: argparse.Namespace) -> int:
    """Show the tasks, or write the list and print the recipe's line."""
    from arpo_verl.tasks.lists import by_domain, of_domains, random_subset, write_list

    tasks, left_out = _usable(args)
    if args.domain is not None:
        tasks = of_domains(tasks, args.domain)
    if args.count is not None:
        tasks = random_subset(tasks, args.count, args.seed)
    if args.out is not None:
        write_list(args.out, tasks)
    else:
        _show(tasks)
    print(printable_lines(by_domain(tasks)))
    if left_out:
        print(f"{left_out} more cannot run here; `arpo-verl doctor --task-dir {args.source}` says why")
    if args.out is not None:
        print(f"data.train_files={args.out.absolute()}")
    return 0


def _usable(args: argparse.Namespace) -> tuple[list[Task], int]:
    """Return the tasks that are well-formed and, with `--runs-here`, run here, and the number of the others."""
    from arpo_verl.tasks.loader import scan_tasks
    from arpo_verl.tasks.validation import explain_task
    from arpo_verl.types import Task

    environment = build_environment(args, {"screen_size": [1920, 1080]})
    found = list(scan_tasks(args.source))
    tasks = [one for one in found if isinstance(one, Task) and not (args.runs_here and explain_task(one, environment))]
    return tasks, len(found) - len(tasks)


def _show(tasks: Sequence[Task]) -> None:
    for task in tasks:
        print(printable(f"{task.domain or 'other'}/{task.task_id}  {' '.join(task.instruction.split())[:_SHOWN]}"))
