"""Generated tasks on real desktops: does the expert solve them, and what does setting one up cost?

    python benchmarks/families.py [--tasks 48] [--first 1000] [--smoke] [--json [PATH]]

Each split's tasks are set up one after the other on one desktop, which is a fresh one each time, and played by the
expert, up to three times. CPU seconds are those of all processes of the desktop, its boot and its verdict included,
divided by tasks.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from typing import Any

from figures import Arguments, machine, report

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.osworld.environment import OSWorldEnvironment
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.families import SCREEN, SPLITS, replies_of
from arpo_verl.types import Task


def measure(split: str, first: int, count: int) -> dict[str, Any]:
    """Of one split: episodes that the expert solved, seconds of a set-up, CPU seconds of an episode's desktop."""
    tasks = load_tasks(f"families:{split}:{first}:{count}")
    before = _children_s()
    desktop = OSWorldEnvironment(EnvironmentConfig(screen_size=SCREEN), split)
    try:
        outcomes = [_play_again(desktop, task) for task in tasks]
    finally:
        desktop.close()  # its processes' times are known once they have ended
    return {
        f"{split}_solved": sum(solved for solved, _ in outcomes),
        f"{split}_set_up_s": statistics.median(seconds for _, seconds in outcomes),
        f"{split}_cpu_s": (_children_s() - before) / len(tasks),
    }


def _play_again(desktop: OSWorldEnvironment, task: Task) -> tuple[bool, float]:
    """Up to three times: a busy machine may draw a window later than the script clicks it."""
    for _ in range(2):
        outcome = _play(desktop, task)
        if outcome[0]:
            return outcome
    return _play(desktop, task)


def _play(desktop: OSWorldEnvironment, task: Task) -> tuple[bool, float]:
    started = time.monotonic()
    desktop.reset(task)
    seconds = time.monotonic() - started
    for reply in replies_of(task.task_id):
        for action in reply.actions:
            desktop.step(action)
    return desktop.evaluate().score == 1, seconds


def _children_s() -> float:
    times = resource.getrusage(resource.RUSAGE_CHILDREN)
    return times.ru_utime + times.ru_stime


def main() -> None:
    """Measure every split."""
    parser = Arguments(__doc__, smoke="six tasks of each split")
    parser.add_size("--tasks", full=48, smoke=6, words="of each split")
    parser.add_argument("--first", type=int, default=1000, help="the first one's number (default: %(default)s)")
    arguments = parser.parse()
    figures: dict[str, Any] = {**machine(), "tasks_of_each_split": arguments.tasks, "first": arguments.first}
    for split in SPLITS:
        figures |= measure(split, arguments.first, arguments.tasks)
    report({**figures, "load_after": os.getloadavg()[0]}, arguments.json)


if __name__ == "__main__":
    main()
