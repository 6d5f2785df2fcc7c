"""`arpo-verl try TASK` plays one task by hand, with the desktops, grammar and evaluator of a training run."""

from __future__ import annotations

import argparse
from pathlib import Path

from arpo_verl.agent.models.family import SHIPPED
from arpo_verl.tools.cli.options import add_environment_options, parse_size

DESCRIPTION = """\
Plays one task turn by turn, prints each action and its time, keeps the screenshots,
and ends with the evaluator's verdict. The exit status is 0 if the task ran, whatever
its score.
"""
EPILOG = """replies:
  One reply a turn, in the grammar that a policy would write, such as

    Thought: Open the menu.
    Action: click(start_box='(24,40)')

  A line of --- ends a reply, in a file and at the prompt. The prompt asks again for a malformed reply, and Ctrl-D ends
  the episode. A recorded episode.json works as a file of replies too. Coordinates are in pixels of the screen, or of
  --image-size (a recorded episode has its own).

examples:
  arpo-verl try calculator-to-dialog --expert
  arpo-verl try TASK.json --replies replies.txt --option settle_timeout_s=2
  arpo-verl try TASK.json --provider docker --option path_to_vm=/data/Ubuntu.qcow2
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("try", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("task", help="a task file in OSWorld's format, the id of a shipped task, or NAME:ARGUMENT")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--replies", type=Path, metavar="FILE", help="replies to play (default: you type them)")
    source.add_argument("--expert", action="store_true", help="play the scripted solution of a shipped task")
    add_environment_options(parser)
    parser.add_argument(
        "--screen", type=parse_size, metavar="WxH", help="default: 640x480 for shipped tasks, otherwise 1920x1080"
    )
    parser.add_argument("--image-size", type=parse_size, metavar="WxH", help="size of the image of the coordinates")
    parser.add_argument("--max-steps", type=int, metavar="N", help="most replies (default: 15, or all with --expert)")
    parser.add_argument(
        "--model-family",
        metavar="NAME",
        default="ui_tars_15",
        help=f"family whose grammar replies use: {', '.join(SHIPPED)} or package.module:NAME (default: ui_tars_15)",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/try"), metavar="DIR", help="default: runs/try")


def run(args: argparse.Namespace) -> int:
    from arpo_verl.tools.cli.by_hand import play_by_hand

    return play_by_hand(args)
