"""Play one task by hand, for `arpo-verl try`: with replies from a file or a recorded episode, or typed at a prompt."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from arpo_verl.agent.models.family import ModelFamily
from arpo_verl.agent.rollout.blocking import play_blocking, run_blocking
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.conversation import Conversation
from arpo_verl.agent.rollout.episode import Episode
from arpo_verl.agent.rollout.scoring import score_episode
from arpo_verl.agent.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.desktops.config import OSWORLD_SCREEN, EnvironmentConfig
from arpo_verl.desktops.threaded import ThreadedDesktop
from arpo_verl.errors import ActionError, ConfigError, TaskError
from arpo_verl.lib.config import did_you_mean, require
from arpo_verl.lib.files import write_whole
from arpo_verl.lib.untrusted import MOST_JSON_BYTES, parse_json, printable_lines, read_text
from arpo_verl.records.documents import EpisodeRecord
from arpo_verl.records.episode_file import EpisodeFile
from arpo_verl.records.episode_folder import write_episode
from arpo_verl.reward import compute_score
from arpo_verl.tasks.expert import EXPERT_SCREEN, expert_replies
from arpo_verl.tasks.loader import load_tasks, shipped_file, shipped_ids
from arpo_verl.tasks.schema import INFEASIBLE
from arpo_verl.tools.cli.options import build_environment
from arpo_verl.tools.cli.terminal import ended_by_signals
from arpo_verl.types import Action, Evaluation, Fail, Observation, Size, StopReason, Task

T = TypeVar("T")
SEPARATOR = "---"
"""A line with only this ends a reply, since a reply itself may have blank lines."""


def play_by_hand(args: argparse.Namespace) -> int:
    """Play the task of `arpo-verl try`; return 0 after it was played and evaluated."""
    task = find_task(args.task)
    screen = args.screen or (EXPERT_SCREEN if shipped_file(task.task_id) else OSWORLD_SCREEN)
    environment = build_environment(args, {"screen_size": screen})
    max_steps = args.max_steps
    if max_steps is None:
        max_steps = len(expert_replies(task.task_id)) if args.expert else 15
    agent = GuiAgentConfig(max_steps=max_steps, max_screenshots=None, model_family=args.model_family)
    conversation = _conversation(args, agent.family, task, environment.screen_size)
    args.out.mkdir(parents=True, exist_ok=True)
    _say(f"task {task.task_id}: {task.instruction}")
    newest = args.out / f"newest-{task.task_id}.png"
    with ended_by_signals(), _WatchedDesktop(environment, newest) as desktop:
        desktop.prepare()
        _say(f"the newest screenshot is always in {newest}")
        episode = play_blocking(task, desktop, conversation, agent)
        _say(_describe(episode))  # before it is recorded: a full disk must not take the verdict away
        folder = _record(args.out, episode, newest)
    _say(f"recorded in {folder}")
    return 0


def find_task(name: str) -> Task:
    """Return the task of a file, or the shipped one with this id.

    Raises:
        TaskError: there is no such task, or the file has several.
    """
    if not Path(name).exists() and (hint := did_you_mean(name, shipped_ids())) and shipped_file(name) is None:
        raise TaskError(f"there is no task {name}{hint}")
    tasks = load_tasks(name if Path(name).exists() else shipped_file(name) or name)
    if len(tasks) != 1:
        raise TaskError(f"try plays one task, but {name} has {len(tasks)}; name the task's own file")
    return tasks[0]


def _conversation(args: argparse.Namespace, family: ModelFamily, task: Task, screen: Size) -> Conversation:
    if args.expert:
        sides = list(EXPERT_SCREEN)
        require(screen == EXPERT_SCREEN, "environment.screen_size", f"{sides}, the expert's own", list(screen))
        texts = [family.format(reply, EXPERT_SCREEN, EXPERT_SCREEN) for reply in expert_replies(task.task_id)]
        return ScriptedConversation(replies_of(texts), EXPERT_SCREEN)
    if args.replies is not None:
        replies = read_replies(args.replies)
        return ScriptedConversation(replies_of(replies.texts), args.image_size or replies.image_size)
    return ScriptedConversation(PromptedReplies(family, args.image_size, _say), args.image_size)


def _record(out: Path, episode: Episode, newest: Path) -> Path:
    """Record the episode as a training run does, with the last screenshot, which no reply answered, beside it."""
    folder = record_episode(out, episode, uid=datetime.now().strftime("%Y%m%d-%H%M%S-%f"))
    newest.replace(folder / f"final{newest.suffix}")
    return folder


def _say(line: str) -> None:
    print(printable_lines(line), flush=True)


class _WatchedDesktop(DesktopEnvironment):
    """A desktop that prints what it does and how long that takes, and keeps the newest screenshot in a file.

    It is a context manager, so that an interrupt at any moment leaves no desktop behind.

    Args:
        newest: the file for the newest screenshot.
    """

    def __init__(self, config: EnvironmentConfig, newest: Path):
        self._environment = ThreadedDesktop(config, "try")
        self._newest = newest

    def prepare(self) -> None:
        _say("booting a desktop; importing OSWorld's client alone takes some seconds ...")
        self._timed("booted", self._environment.prepare)

    def reset(self, task: Task) -> Observation:
        _say("setting the task up ...")
        return self._see(self._timed("set up", lambda: self._environment.reset(task)))

    def step(self, action: Action) -> Observation:
        return self._see(self._timed(str(action), lambda: self._environment.step(action)))

    def evaluate(self) -> Evaluation:
        _say("asking the evaluator ...")
        return self._timed("evaluated", self._environment.evaluate)

    def close(self) -> None:
        self._environment.close()
        self._newest.unlink(missing_ok=True)

    def _timed(self, what: str, function: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = function()
        _say(f"  {time.perf_counter() - began:6.2f} s  {what}")
        return result

    def _see(self, observation: Observation) -> Observation:
        # Replace the whole file, so that a viewer that watches it never reads half an image.
        write_whole(self._newest, observation.screenshot, sync=False)
        return observation


def _describe(episode: Episode) -> str:
    """Describe how it ended, what each metric got and returned, and the score, in lines for a terminal."""
    lines = [f"stopped: {episode.stop_reason.value} after {len(episode.turns)} replies"]
    if episode.turns[-1].parse_error is not None:
        lines.append(f"  the last reply is malformed: {episode.turns[-1].parse_error}")
    for call in episode.metrics:
        lines += [
            f"  {call.metric} returned {call.returned}",
            f"    found    {call.result}",
            f"    expected {call.expected}",
        ]
    if not episode.metrics:
        lines.append(f"  no metric ran: {_without_metric(episode)}")
    lines.append(f"score {episode.success:g}")
    return "\n".join(lines)


def _without_metric(episode: Episode) -> str:
    said_so = any(isinstance(action, Fail) for turn in episode.turns for action in turn.actions)
    if episode.task.spec["evaluator"].get("func") == INFEASIBLE:
        return "the task is infeasible, and the agent " + ("said so" if said_so else "did not say so")
    if episode.stop_reason is StopReason.DESKTOP_ENDED:
        return "the agent ended its own desktop"
    if episode.stop_reason is StopReason.FAILED:
        return "the agent gave up on a task that can be done"
    return "the evaluator found nothing to evaluate"


def record_episode(directory: Path, episode: Episode, uid: str, session: int = 0) -> Path:
    """Record a finished episode from outside of a training; return its folder.

    Raises:
        OSError: the files cannot be written.
    """
    score = run_blocking(score_episode(compute_score, episode, "", {}))
    row = {"uid": uid, "session_id": session, "global_steps": 0}
    return write_episode(directory, EpisodeRecord.of_row(row, episode, score), episode.screenshots)


@dataclass(frozen=True)
class Replies:
    """Texts in order, and the size of the image that their coordinates are in, if known."""

    texts: tuple[str, ...]
    image_size: Size | None = None


def read_replies(path: Path) -> Replies:
    """Read replies with `---` lines between them, or those of a recorded `episode.json`.

    Raises:
        ConfigError: the file cannot be read, or has no replies.
    """
    try:
        text = read_text(path, MOST_JSON_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--replies must be a text file of replies, got {path}: {error}") from error
    replies = _recorded(path, text) if path.suffix == ".json" else Replies(split_replies(text))
    if not replies.texts:
        raise ConfigError(f"--replies must hold at least one reply, got none in {path}")
    return replies


def split_replies(text: str) -> tuple[str, ...]:
    """Split a text into replies at lines that are `---`, without empty ones."""
    blocks = re.split(rf"^{SEPARATOR}[ \t]*$", text.replace("\r\n", "\n"), flags=re.MULTILINE)
    return tuple(block.strip() for block in blocks if block.strip())


def _recorded(path: Path, text: str) -> Replies:
    try:
        episode = msgspec.convert(parse_json(text), EpisodeFile)
        return Replies(tuple(turn.text for turn in episode.turns), episode.image_size)
    except ValueError as error:
        raise ConfigError(
            f"--replies must be an episode.json as a run records it, or text with {SEPARATOR} lines between replies, "
            f"got {path}: {error}"
        ) from error


class PromptedReplies:
    """Ask for a reply to each screenshot, again if it is malformed, which would end a policy's episode."""

    def __init__(self, family: ModelFamily, image_size: Size | None, say: Callable[[str], None]):
        self._family = family
        self._image_size = image_size
        self._say = say
        self._count = 0

    def __call__(self, screen: Size) -> str | None:
        self._count += 1
        while True:
            self._say(f"reply {self._count}; end it with a line of {SEPARATOR}, or the episode with Ctrl-D:")
            text = _read_block()
            if text is None:
                return None
            try:
                self._family.read(text, self._image_size or screen, screen)
                return text
            except ActionError as error:
                self._say(f"  malformed; this would end a policy's episode: {error}")


def _read_block() -> str | None:
    """Read lines up to `---` or the end of input; None if the input ended before any text."""
    lines: list[str] = []
    while True:
        try:
            line = input()
        except EOFError:
            return "\n".join(lines).strip() or None
        if line.rstrip() == SEPARATOR:
            return "\n".join(lines).strip()
        lines.append(line)
