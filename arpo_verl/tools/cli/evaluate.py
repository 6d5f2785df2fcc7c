"""`arpo-verl evaluate` measures how often a policy solves tasks, and compares two evaluations."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from arpo_verl.lib.untrusted import printable_lines
from arpo_verl.tools.cli.playing_options import add_playing_options
from arpo_verl.tools.cli.terminal import shown_command

FAULTY = 1

DESCRIPTION = """\
Lets a policy play tasks as in training, each several times, and writes a table of
its success with 95% intervals beside the recorded episodes. Trials lost to
infrastructure failures are reported separately and never scored: the exit status is
then 1, and the same command repeats them.
"""
EPILOG = """examples:
  arpo-verl evaluate --recipe embedded --model .cache/policy --runs 8 --out runs/warm-start
  arpo-verl evaluate --recipe osworld_full --tasks OSWorld/evaluation_examples --runs 4 --max-steps 15,50 \\
    --endpoint http://127.0.0.1:8000/v1 --out runs/ui-tars
  arpo-verl evaluate --compare runs/warm-start runs/trained

If an evaluation is interrupted or killed, the same command resumes it. `arpo-verl view` opens its folder.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("evaluate", description=DESCRIPTION, epilog=EPILOG)
    add_playing_options(parser)
    parser.add_argument("--runs", type=int, default=1, metavar="K", help="episodes of each task (default: 1)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the evaluation's folder")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("A", "B"), help="compare two evaluations' folders")


def run(args: argparse.Namespace) -> int:
    """Evaluate or compare; return 0 if every trial has a result."""
    if args.compare:
        from arpo_verl.tools.evaluation.compare import compare
        from arpo_verl.tools.evaluation.folder import EvaluationFolder

        print(printable_lines(compare(*(EvaluationFolder(path).read() for path in args.compare))))
        return 0
    from arpo_verl.tools.cli.playing import open_policy, read_command
    from arpo_verl.tools.evaluation.midway import describe_midway
    from arpo_verl.tools.evaluation.report import write_report
    from arpo_verl.tools.evaluation.runner import evaluate
    from arpo_verl.tools.evaluation.schedule import EachRun

    playing = read_command(args)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    settings = playing.settings
    scheduler = EachRun([task.task_id for task in playing.tasks], args.runs, settings.budgets)
    if len(settings.budgets) > 1:
        by_harness = settings.agent.harness is not None
        print(describe_midway(playing.tasks, settings.budgets, by_harness), flush=True)
    with open_policy(args, playing, args.out) as policy:
        evaluated = evaluate(args.out, playing.tasks, scheduler, policy, settings)
    print(printable_lines(f"\n{write_report(args.out)}"))
    if evaluated.faults:
        last = evaluated.faults[-1]
        print(printable_lines(f"the last failure: {last.task_id}: {last.message}"))
        print(f"the same command repeats these trials; {args.out}/faults.jsonl has each one's failure")
    print(f"tables    {args.out}/results.md, results.csv\nepisodes  {shown_command('view', args.out)}")
    return FAULTY if evaluated.faults else 0
