"""Runs OSWorld's own task files on the embedded desktop: doing nothing, saying FAIL, or by a scripted solution.

The task files are not part of this project: `$ARPO_OSWORLD_TASKS` names their folder (OSWorld's `evaluation_examples`
layout: `examples/<domain>/<id>.json`); without it, `../shared/osworld-tasks` beside the checkout is looked at.

A solution is a function of an `Operator`, which acts by typed actions through `environment.step` and by nothing else.
It waits for what it needs to see (a window, a line that a command prints), never for a time.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import requests
from PIL import Image, ImageChops

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment
from arpo_verl.tasks.loader import load_tasks
from arpo_verl.tasks.validation import check_tasks_run_here
from arpo_verl.types import Action, Click, Fail, Finish, Hotkey, Point, Size, Task, TypeText, Wait
from support import ROOT

TASKS_VARIABLE = "ARPO_OSWORLD_TASKS"
TRACE_VARIABLE = "ARPO_OSWORLD_TRACE"
"""A folder for the screenshot after each action of a solution, to look at while scripting one."""
SCREEN = Size(1920, 1080)
"""The screen of OSWorld's own machines, which its tasks click into the middle of."""
PATIENCE_S = 120.0
"""Bounds a hang. On an idle machine the longest wait, for a cold program, is some seconds."""
LOOK_INTERVAL_S = 0.2
CARET = Size(16, 40)


def find_tasks_dir() -> Path | None:
    """The folder of OSWorld's task files, or None."""
    beside = ROOT.resolve().parent / "shared" / "osworld-tasks"
    folder = Path(os.environ.get(TASKS_VARIABLE) or beside)
    return folder if (folder / "examples").is_dir() else None


def load(tasks_dir: Path, domain: str, task_id: str) -> Task:
    """One task of OSWorld's, by the full id or the start of it."""
    (path,) = (tasks_dir / "examples" / domain).glob(f"{task_id}*.json")
    return load_tasks(path)[0]


def make_environment(cache_dir: str | Path | None = None, **options: Any) -> OSWorldEnvironment:
    """An embedded desktop with OSWorld's screen."""
    options = {"action_pause_s": 0.2, "wait_s": 0.1, "evaluate_timeout_s": 600.0, **options}
    config = EnvironmentConfig(screen_size=SCREEN, cache_dir=None if cache_dir is None else str(cache_dir), **options)
    return OSWorldEnvironment(config)


Solution = Callable[["Operator"], None]
Box = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels of the screen."""


def released_but(names: Iterable[str], *kept: str) -> list[Any]:
    """Parameters of which `make test` runs those that begin with one of `kept`, and `make test-release` the others."""
    return [name if name.startswith(kept) else pytest.param(name, marks=pytest.mark.release) for name in names]


def run_nothing(environment: OSWorldEnvironment, task: Task) -> float:
    """The score of an agent that says at once that it is done."""
    return _run(environment, task, lambda operator: None, Finish())


def run_fail(environment: OSWorldEnvironment, task: Task) -> float:
    """The score of an agent that says at once that the task cannot be done."""
    return _run(environment, task, lambda operator: None, Fail())


def run_solution(environment: OSWorldEnvironment, task: Task, solution: Solution) -> float:
    """The score of a scripted solution."""
    return _run(environment, task, solution, Finish())


def scores(environment: OSWorldEnvironment, task: Task, solution: Solution) -> tuple[float, float]:
    """The scores of doing nothing and of a scripted solution."""
    return run_nothing(environment, task), run_solution(environment, task, solution)


def _run(environment: OSWorldEnvironment, task: Task, solution: Solution, last: Action) -> float:
    check_tasks_run_here([task], environment._config)
    observation = environment.reset(task)
    solution(Operator(environment, observation.screenshot, task.task_id))
    environment.step(last)
    return environment.evaluate().score


class Operator:
    """Acts on a desktop as its user, and looks at what came of it."""

    def __init__(self, environment: OSWorldEnvironment, screenshot: bytes, name: str):
        self._environment = environment
        self._name = name
        self.screenshot = self._before = screenshot
        """What the last action led to."""
        self.num_actions = 0
        self._trace()

    # --- Acting: typed actions through the environment ----------------------------------------------------------

    def act(self, *actions: Action) -> None:
        """Take actions, one after the other."""
        for action in actions:
            self._before = self.screenshot
            self.screenshot = self._environment.step(action).screenshot
            self.num_actions += 1
            self._trace()

    def press(self, *keys: str) -> None:
        """Press keys together."""
        self.act(Hotkey(keys))

    def type(self, text: str) -> None:
        """Type text; a newline presses Enter."""
        self.act(TypeText(text))

    def click(self, x: int, y: int, **options: Any) -> None:
        """Click at pixels of the screen; options are `Click`'s."""
        self.act(Click(Point(x, y), **options))

    # --- Looking: nothing here changes the desktop --------------------------------------------------------------

    def look(self) -> bytes:
        """A new screenshot, after a moment."""
        self.screenshot = self._environment.step(Wait()).screenshot
        return self.screenshot

    def sh(self, line: str) -> str:
        """What a shell line in the guest prints. For looking only."""
        client = self._environment._running()
        reply = requests.post(
            f"http://{client.address}/execute", json={"command": line, "shell": True}, timeout=PATIENCE_S
        )
        return reply.json().get("output", "")

    def windows(self) -> list[str]:
        """The titles of all windows."""
        return [line.split(None, 3)[-1] for line in self.sh("wmctrl -l").splitlines()]

    def focused(self) -> str:
        """The title of the window that the keyboard goes to."""
        return self.sh("xdotool getactivewindow getwindowname 2>/dev/null").strip()

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        """The condition's first true value."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {PATIENCE_S:g} s; windows {self.windows()}{self._evidence()}")
            time.sleep(LOOK_INTERVAL_S)
        return value

    def await_window(self, title: str) -> None:
        """Wait until the keyboard goes to a window whose title contains `title`."""
        self.until(f"a focused window {title!r}", lambda: title in self.focused())

    def await_no_window(self, title: str) -> None:
        """Wait until no window's title contains `title`."""
        self.until(f"no window {title!r}", lambda: not any(title in window for window in self.windows()))

    def await_output(self, line: str, expected: str) -> None:
        """Wait until a shell line prints something that contains `expected`."""
        self.until(f"{line!r} prints {expected!r}", lambda: expected in self.sh(line))

    def await_change(self, box: Box | None = None) -> None:
        """Wait until the last action has changed the screen, or a box of it, and the screen is still again.

        A box is needed after a click, since the pointer's way is a change too: one that the pointer is not in.
        """
        before = self._before
        self.until("a change of the screen", lambda: not _alike(before, self.look(), box))
        self.await_still()

    def await_still(self) -> None:
        """Wait until three looks in a row show the same, but for a blinking caret: all is drawn."""
        looks = [self.look(), self.look()]

        def still() -> bool:
            looks.append(self.look())
            return _alike(looks[-3], looks[-2]) and _alike(looks[-2], looks[-1])

        self.until("a still screen", still)

    # --- Evidence -----------------------------------------------------------------------------------------------

    def _trace(self) -> None:
        if folder := os.environ.get(TRACE_VARIABLE):
            path = Path(folder) / self._name / f"{self.num_actions:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.screenshot)

    def _evidence(self) -> str:
        """The screen as it is, in the trace folder, for a message."""
        self.look()
        self._trace()
        folder = os.environ.get(TRACE_VARIABLE)
        hint = f"{folder}/{self._name}" if folder else f"set {TRACE_VARIABLE} to a folder to get the screenshots"
        return f"; {hint}"


def _alike(one: bytes, other: bytes, box: Box | None = None) -> bool:
    """Whether two screenshots differ at most in what a text caret covers."""
    images = [Image.open(io.BytesIO(screenshot)).convert("L").crop(box) for screenshot in (one, other)]
    change = ImageChops.difference(*images).getbbox()
    return change is None or (change[2] - change[0] <= CARET.width and change[3] - change[1] <= CARET.height)
