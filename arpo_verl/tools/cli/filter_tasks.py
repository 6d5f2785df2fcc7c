"""`arpo-verl filter-tasks` lists the tasks that a policy sometimes solves, to train on them."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from arpo_verl.lib.config import Problems, require
from arpo_verl.tools.cli.playing_options import add_playing_options

UNSETTLED = 1

DESCRIPTION = """\
Lets a policy play each task until it is settled whether to keep it, which takes far
fewer episodes than --runs of each, and writes the list. Tasks that doing nothing
solves on these desktops are named and left out. Trials lost to infrastructure
failures are never scored. If they leave a task unsettled, the exit status is 1, and
the same command resumes.
"""
EPILOG = """examples:
  arpo-verl filter-tasks --recipe embedded --model .cache/policy --out runs/filter
  arpo-verl filter-tasks --recipe osworld_full --tasks OSWorld/evaluation_examples --skip-infeasible \\
    --endpoint http://127.0.0.1:8000/v1 --keep "0.1 <= rate <= 0.9" --error 0 --out runs/filter
  python -m verl.trainer.main_ppo ... data.train_files=runs/filter/training_tasks

An evaluation with the same settings in --out counts too. The same command resumes an interrupted run.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("filter-tasks", description=DESCRIPTION, epilog=EPILOG)
    add_playing_options(parser, temperature=1.0)  # as in training's rollouts
    parser.add_argument("--runs", type=int, default=16, metavar="K", help="most episodes of each task (default: 16)")
    parser.add_argument(
        "--keep",
        metavar="RULE",
        help="range of successes in --runs, or of their rate, such as 'successes >= 1' or '0.1 <= rate <= 0.9' "
        "(default: '1 <= successes <= K - 1')",
    )
    parser.add_argument(
        "--error",
        type=float,
        default=0.02,
        metavar="P",
        help="a task is settled if all --runs would change the decision with at most this probability; 0 waits until "
        "they cannot change it (default: 0.02)",
    )
    parser.add_argument("--skip-infeasible", action="store_true", help="leave out tasks whose right answer is FAIL")
    parser.add_argument(
        "--group-size", type=int, default=8, metavar="N", help="rollout.n of the planned training (default: 8)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder for episodes and the list")


def run(args: argparse.Namespace) -> int:
    """Filter; return 0 if every task is settled and the list is not empty."""
    from arpo_verl.tools.cli.playing import open_policy, read_command
    from arpo_verl.tools.evaluation.filter_run import filter_tasks
    from arpo_verl.tools.evaluation.filtering import Fate
    from arpo_verl.tools.evaluation.keep_rule import KeepRule
    from arpo_verl.tools.evaluation.report import write_report
    from arpo_verl.tools.evaluation.training_list import write_training_list

    problems = Problems()
    with problems.gather():
        require(0 <= args.error < 0.5, "--error", "from 0 to below 0.5", args.error)
    with problems.gather():
        require(args.group_size >= 2, "--group-size", "2 or more", args.group_size)
    with problems.gather():
        playing = read_command(args)
        budgets = playing.settings.budgets
        require(len(budgets) == 1, "--max-steps", "one turn budget", ",".join(map(str, budgets)))
    if args.runs >= 1:
        with problems.gather():
            rule = KeepRule.parse(f"1 <= successes <= {args.runs - 1}" if args.keep is None else args.keep, args.runs)
    problems.raise_all()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    options = {"error": args.error, "group_size": args.group_size, "skip_infeasible": args.skip_infeasible}
    with open_policy(args, playing, args.out) as policy:
        filtered = filter_tasks(args.out, playing.tasks, rule, policy, playing.settings, **options)
    folder = write_training_list(args.out, filtered, playing.tasks)
    write_report(args.out)
    print(filtered)
    if not filtered.kept:
        print(f"no task was kept, so {folder} has none to train on; see {args.out}/filter.json")
        return UNSETTLED
    print(f"data.train_files={folder}")
    fates = {task.fate for task in filtered.tasks}
    return UNSETTLED if fates & {Fate.UNSETTLED, Fate.NO_VERDICT} else 0
