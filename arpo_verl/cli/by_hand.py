"""One task played by hand, as `arpo-verl try` does."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path

from arpo_verl.actions.grammars import GRAMMARS
from arpo_verl.cli.interrupts import INTERRUPTED, ended_by_signals
from arpo_verl.cli.options import build_environment
from arpo_verl.cli.prompted import PromptedReplies
from arpo_verl.cli.replies import read_replies
from arpo_verl.cli.verdict import describe
from arpo_verl.cli.watched_desktop import WatchedDesktop
from arpo_verl.config import did_you_mean, require
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
from arpo_verl.tasks.loader import load_tasks, shipped_file, shipped_ids
from arpo_verl.types import Size, Task
from arpo_verl.untrusted import printable_lines


def play_by_hand(args: argparse.Namespace) -> int:
    """Play the task of `arpo-verl try`; return 0 when it was played and judged."""
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
    if not Path(name).exists() and (hint := did_you_mean(name, shipped_ids())) and shipped_file(name) is None:
        raise TaskError(f"there is no task {name}{hint}")
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


def _say(line: str) -> None:
    print(printable_lines(line), flush=True)
