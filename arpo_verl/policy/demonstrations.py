"""Demonstrations: the scripted expert plays the tasks on real desktops; screens and replies are kept for imitation."""

from __future__ import annotations

import io
import json
import logging
import queue
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from PIL import Image
from tqdm import tqdm

from arpo_verl.actions.reply import Reply
from arpo_verl.actions.ui_tars import format_reply, parse_reply
from arpo_verl.environments.base import DesktopEnvironment
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.factory import environment_factory
from arpo_verl.errors import DesktopError, TaskError
from arpo_verl.types import Size, Task

logger = logging.getLogger(__name__)

ExpertFor = Callable[[str], Sequence[Reply]]


@dataclass(frozen=True)
class Demonstration:
    """One solved episode: what the expert saw before each reply, and the reply as the policy has to write it."""

    task_id: str
    instruction: str
    screenshots: tuple[bytes, ...]
    replies: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.replies or len(self.screenshots) != len(self.replies):
            raise ValueError(
                f"a demonstration must have one screenshot before each of at least one reply, "
                f"got {len(self.screenshots)} and {len(self.replies)}"
            )


def collect_demonstrations(
    tasks: Sequence[Task],
    expert: ExpertFor,
    environment: EnvironmentConfig,
    image_size: Callable[[Size], Size],
    *,
    repeats: int,
) -> list[Demonstration]:
    """Have the expert play each task `repeats` times, on `environment.num_desktops` desktops at once.

    Args:
        tasks: what to play.
        expert: the replies that solve a task, by its id, with points in pixels of the screen.
        environment: which desktops; the pauses should be those of the rollouts, so that the policy sees the same.
        image_size: from a screenshot's size to that of the image which the policy sees.
        repeats: of each task: screens differ a little from one time to the next.

    Returns:
        Demonstrations by task, in the order of `tasks`.

    Raises:
        TaskError: an expert's script does not solve its task.
        DesktopError: `environment.max_attempts` desktops failed at one demonstration.
    """
    jobs = [task for _ in range(repeats) for task in tasks]
    with _desktops(environment) as desktops, ThreadPoolExecutor(environment.num_desktops) as threads:
        futures = {
            threads.submit(_play_with_retries, task, expert(task.task_id), desktops, environment, image_size): number
            for number, task in enumerate(jobs)
        }
        done: dict[int, Demonstration] = {}
        try:
            for future in tqdm(as_completed(futures), total=len(jobs), desc="demonstrations", unit="episode"):
                done[futures[future]] = future.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return [done[repeat * len(tasks) + number] for number in range(len(tasks)) for repeat in range(repeats)]


def _play_with_retries(
    task: Task,
    replies: Sequence[Reply],
    desktops: queue.Queue[_Slot],
    environment: EnvironmentConfig,
    image_size: Callable[[Size], Size],
) -> Demonstration:
    slot = desktops.get()
    try:
        for attempt in range(1, environment.max_attempts + 1):
            try:
                return play_expert(task, replies, slot.desktop, image_size)
            except (DesktopError, TaskError) as error:
                # A busy machine may draw a window later than the script clicks it: that too deserves a second try.
                logger.warning("demonstration of %s, attempt %d: %s", task.task_id, attempt, error)
                slot.renew()
                if attempt == environment.max_attempts:
                    raise
    finally:
        desktops.put(slot)
    raise AssertionError("unreachable: the last attempt returns or raises")


def play_expert(
    task: Task, replies: Sequence[Reply], desktop: DesktopEnvironment, image_size: Callable[[Size], Size]
) -> Demonstration:
    """Play one task to its end by the script, through the text that the policy will write.

    Raises:
        TaskError: the evaluator's score is not 1.
        DesktopError: the desktop failed.
    """
    observation = desktop.reset(task)
    screen = Size(*Image.open(io.BytesIO(observation.screenshot)).size)
    image = image_size(screen)
    screenshots, texts = [], []
    for reply in replies:
        screenshots.append(observation.screenshot)
        texts.append(format_reply(reply, image, screen))
        # Parsed back: what counts is where the policy's coarser coordinates click.
        for action in parse_reply(texts[-1], image, screen).actions:
            observation = desktop.step(action)
    score = desktop.evaluate().score
    if score != 1.0:
        raise TaskError(f"the expert's script must solve task {task.task_id} with score 1, got {score:g}")
    return Demonstration(task.task_id, task.instruction, tuple(screenshots), tuple(texts))


# --- Desktops ----------------------------------------------------------------------------------------------------


class _Slot:
    """A place for one desktop, used by one thread at a time."""

    def __init__(self, environment: EnvironmentConfig, number: int) -> None:
        self._environment = environment
        self._number = number
        self._renewals = 0
        self.desktop = self._make()

    def renew(self) -> None:
        """Throw the desktop away and put a fresh one in its place."""
        self.desktop.close()
        self._renewals += 1
        self.desktop = self._make()

    def _make(self) -> DesktopEnvironment:
        name = f"demonstration-{self._number}.{self._renewals + 1}"
        return environment_factory(self._environment)(self._environment, name)


@contextmanager
def _desktops(environment: EnvironmentConfig) -> Iterator[queue.Queue[_Slot]]:
    slots = [_Slot(environment, number) for number in range(environment.num_desktops)]
    free: queue.Queue[_Slot] = queue.Queue()
    for slot in slots:
        free.put(slot)
    try:
        yield free
    finally:
        for slot in slots:
            slot.desktop.close()


# --- On disk -----------------------------------------------------------------------------------------------------


def save_demonstrations(path: Path, demonstrations: Sequence[Demonstration]) -> None:
    """Write a zip: `demonstrations.json` names, for each reply, the screenshot by its digest; each is stored once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.part")
    screenshots: dict[str, bytes] = {}
    index = []
    for demonstration in demonstrations:
        names = [sha256(data).hexdigest() for data in demonstration.screenshots]
        screenshots.update(zip(names, demonstration.screenshots, strict=True))
        index.append(
            {
                "task_id": demonstration.task_id,
                "instruction": demonstration.instruction,
                "screenshots": names,
                "replies": list(demonstration.replies),
            }
        )
    with zipfile.ZipFile(scratch, "w") as archive:
        for name, data in screenshots.items():
            archive.writestr(name, data)
        archive.writestr("demonstrations.json", json.dumps(index, ensure_ascii=False, indent=1))
    scratch.replace(path)


def load_demonstrations(path: Path) -> list[Demonstration]:
    """Read what `save_demonstrations` wrote."""
    with zipfile.ZipFile(path) as archive:
        return [
            Demonstration(
                task_id=item["task_id"],
                instruction=item["instruction"],
                screenshots=tuple(archive.read(name) for name in item["screenshots"]),
                replies=tuple(item["replies"]),
            )
            for item in json.loads(archive.read("demonstrations.json"))
        ]
