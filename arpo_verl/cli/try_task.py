"""`arpo-verl try TASK`: one task by hand, on the desktops, in the grammar and with the evaluator of a training run."""

from __future__ import annotations

import argparse
import re
from datetime import datetime
from pathlib import Path

from arpo_verl.actions.grammars import GRAMMARS
from arpo_verl.cli.interrupts import INTERRUPTED, ended_by_signals
from arpo_verl.cli.options import add_environment_options, build_environment
from arpo_verl.cli.prompted import PromptedReplies
from arpo_verl.cli.replies import read_replies
from arpo_verl.cli.verdict import describe
from arpo_verl.cli.watched_desktop import WatchedDesktop
from arpo_verl.config import require
from arpo_verl.environments.config import OSWORLD_SCREEN, EnvironmentConfig
from arpo_verl.environments.factory import default_options
from arpo_verl.errors import TaskError
from arpo_verl.records.recorder import record_episode
from arpo_verl.rollout.blocking import play_blocking
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.conversation import Conversation
from arpo_verl.rollout.episode import Episode
from arpo_verl.rollout.prompts import prompt_of
from arpo_verl.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.tasks.expert import EXPERT_SCREEN, expert_replies
from arpo_verl.tasks.loader import load_tasks, shipped_file
from arpo_verl.types import Size, Task

DESCRIPTION = """\
Runs one task step by step, prints what is done and seen, keeps the screenshots, and
ends with the evaluator's verdict. The exit status is 0 when the task ran, whatever
its score.
"""
EPILOG = """replies:
  One reply a step, in the grammar that a policy would write, such as

    Thought: Open the menu.
    Action: click(start_box='(24,40)')

  A line of --- ends a reply, in a file and at the prompt; at the prompt a malformed one is asked for again, and Ctrl-D
  ends the episode. A recorded episode.json is a file of replies too. Coordinates are in pixels of the screen, unless
  --image-size says otherwise (the recorded episode says it itself).

examples:
  arpo-verl try calculator-to-dialog --expert
  arpo-verl try TASK.json --replies replies.txt --option settle_timeout_s=2
  arpo-verl try TASK.json --provider docker --option path_to_vm=/data/Ubuntu.qcow2
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "try",
        help="play one task by hand and see the evaluator's verdict",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", help="a task file in OSWorld's format, the id of a shipped task, or NAME:ARGUMENT")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--replies", type=Path, metavar="FILE", help="replies to play; by default they are typed")
    source.add_argument("--expert", action="store_true", help="play the scripted solution of a shipped task")
    add_environment_options(parser)
    parser.add_argument(
        "--screen", type=_size, metavar="WxH", help="default: 640x480 for shipped tasks, else 1920x1080"
    )
    parser.add_argument("--image-size", type=_size, metavar="WxH", help="of the image that coordinates are in")
    parser.add_argument(
        "--max-steps", type=int, metavar="N", help="replies at most (default: 15, with --expert as many as it has)"
    )
    parser.add_argument(
        "--grammar", choices=sorted(GRAMMARS), default="ui_tars", help="of the replies (default: ui_tars)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/try"), metavar="DIR", help="default: runs/try")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play the task; 0 when it was played and judged."""
    task = find_task(args.task)
    environment = environment_config(args, task)
    max_steps = args.max_steps
    if max_steps is None:
        max_steps = len(expert_replies(task.task_id)) if args.expert else 15
    agent = GuiAgentConfig(
        max_steps=max_steps, max_screenshots=None, prompt=prompt_of(args.grammar), grammar=args.grammar
    )
    conversation = _conversation(args, task, environment.screen_size)
    args.out.mkdir(parents=True, exist_ok=True)
    _say(f"task {task.task_id}: {task.instruction}")
    newest = args.out / f"newest-{task.task_id}.png"
    try:
        with ended_by_signals(), WatchedDesktop(environment, newest, _say) as desktop:
            desktop.prepare()
            _say(f"the newest screenshot is always in {newest}")
            episode = play_blocking(task, desktop, conversation, agent)
            folder = _record(args.out, episode, newest)
    except KeyboardInterrupt:
        _say("\ninterrupted: the desktop is closed, and nothing was judged")
        return INTERRUPTED
    _say(describe(episode))
    _say(f"recorded in {folder}")
    return 0


def find_task(name: str) -> Task:
    """The task of a file, or the shipped one of this id.

    Raises:
        TaskError: there is no such task, or the file holds several.
    """
    tasks = load_tasks(name if Path(name).exists() else shipped_file(name) or name)
    if len(tasks) != 1:
        raise TaskError(f"one task can be tried at a time, got {len(tasks)} in {name}; name the task's own file")
    return tasks[0]


def environment_config(args: argparse.Namespace, task: Task) -> EnvironmentConfig:
    """The environment section that the command line comes to.

    Raises:
        ConfigError: an option does not exist or has a wrong value.
    """
    screen = args.screen or (EXPERT_SCREEN if shipped_file(task.task_id) else OSWORLD_SCREEN)
    return build_environment(args, {**default_options(args.provider), "screen_size": screen})


def _conversation(args: argparse.Namespace, task: Task, screen: Size) -> Conversation:
    if args.expert:
        sides = list(EXPERT_SCREEN)
        require(screen == EXPERT_SCREEN, "environment.screen_size", f"{sides}, the expert's own", list(screen))
        grammar = GRAMMARS[args.grammar]
        texts = [grammar.format(reply, EXPERT_SCREEN, EXPERT_SCREEN) for reply in expert_replies(task.task_id)]
        return ScriptedConversation(replies_of(texts), EXPERT_SCREEN)
    if args.replies is not None:
        replies = read_replies(args.replies)
        return ScriptedConversation(replies_of(replies.texts), args.image_size or replies.image_size)
    return ScriptedConversation(PromptedReplies(GRAMMARS[args.grammar], args.image_size, _say), args.image_size)


def _record(out: Path, episode: Episode, newest: Path) -> Path:
    """Keep the episode as a training run does, and the last look beside it, which no reply answered."""
    folder = record_episode(out, episode, uid=datetime.now().strftime("%Y%m%d-%H%M%S-%f"))
    newest.replace(folder / f"final{newest.suffix}")
    return folder


def _size(text: str) -> Size:
    match = re.fullmatch(r"(\d+)[xX](\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"a size must be WIDTHxHEIGHT such as 1920x1080, got {text!r}")
    return Size(int(match[1]), int(match[2]))


def _say(line: str) -> None:
    print(line, flush=True)
