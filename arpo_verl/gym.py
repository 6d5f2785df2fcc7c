"""Beside a training run: the desktop as a Gymnasium environment.

    env = arpo_verl.gym.DesktopEnv("embedded")          # or gymnasium.make("arpo_verl.gym:arpo_verl/Desktop-v0")
    screenshot, info = env.reset(seed=0)                # info: task_id, instruction
    screenshot, reward, terminated, truncated, info = env.step(Click(Point(320, 240)))

An action is a type such as `Click`, `TypeText` or `Finish`; `action_space.sample()` draws one. The reward is the
evaluator's score in the step that ends the episode, and 0 before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

import numpy as np

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as error:
    from arpo_verl.errors import MissingDependencyError
    from arpo_verl.versions import pip_install

    raise MissingDependencyError(f"arpo_verl.gym needs Gymnasium; {pip_install('gymnasium')}") from error

from arpo_verl.agent.actions.checks import MAX_CLICKS, check_action
from arpo_verl.agent.actions.keys import KEY_NAMES
from arpo_verl.agent.rollout.vision import decode_screenshot
from arpo_verl.api import make_desktop
from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.desktops.config import EMBEDDED
from arpo_verl.desktops.threaded import ThreadedDesktop
from arpo_verl.errors import ActionError, DesktopEndedError, TaskError
from arpo_verl.lib.config import require, whole
from arpo_verl.tasks.loader import TaskPath, load_tasks
from arpo_verl.types import (
    Action,
    Button,
    Click,
    Direction,
    Drag,
    Fail,
    Finish,
    Hotkey,
    Move,
    Observation,
    Point,
    Scroll,
    Size,
    Task,
    TypeText,
    Wait,
)

T = TypeVar("T")

ENV_ID = "arpo_verl/Desktop-v0"
_BUTTONS: tuple[Button, ...] = get_args(Button)
_DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
_KEYS = sorted(KEY_NAMES)
_TEXTS = "".join(map(chr, range(32, 127))) + "\n"


class DesktopEnv(gymnasium.Env[np.ndarray, Any]):
    """Has one desktop and a list of tasks, and plays one episode after the other.

    Args:
        tasks: what `load_tasks` accepts, or tasks. `reset(seed=...)` draws one, `reset(options={"task_id": ...})`
            names it.
        desktop: a provider's name, or a desktop, which is then closed with the environment.
        max_steps: actions after which the episode is truncated; it is evaluated anyway.
        options: other fields of `EnvironmentConfig`; only with a provider's name.

    Observations are screenshots, (height, width, 3) uint8. A real desktop is not deterministic: two resets with one
    seed give the same task, not the same pixels. A failure is an exception (`DesktopError`), never a reward.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(
        self,
        tasks: TaskPath | Iterable[Task | TaskPath] = EMBEDDED,
        desktop: str | DesktopEnvironment = EMBEDDED,
        *,
        max_steps: int = 15,
        render_mode: str | None = None,
        **options: Any,
    ):
        at_least_one = whole(1)
        require(at_least_one.holds(max_steps), "max_steps", at_least_one.expected, max_steps)
        modes = self.metadata["render_modes"]
        require(render_mode is None or render_mode in modes, "render_mode", f"one of {', '.join(modes)}", render_mode)
        self.tasks = _as_tasks(tasks)
        self.render_mode = render_mode
        self.spec = gymnasium.spec(ENV_ID)
        self._max_steps = max_steps
        of_desktop = "fields of EnvironmentConfig with a provider's name, none with a desktop"
        require(isinstance(desktop, str) or not options, "options", of_desktop, sorted(options))
        self._desktop = make_desktop(desktop, **options) if isinstance(desktop, str) else desktop
        self._task: Task | None = None
        self._num_steps = 0
        self._screen: np.ndarray | None = None
        size = self._screen_size()
        self.observation_space = spaces.Box(0, 255, (size.height, size.width, 3), np.uint8)
        self.action_space = ActionSpace(size)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Set up a task on a clean desktop.

        Raises:
            TaskError: `options["task_id"]` is not one of the tasks.
            DesktopError: no desktop started, or the set-up failed.
        """
        super().reset(seed=seed)
        options = {} if options is None else options
        ok = isinstance(options, Mapping) and set(options) <= {"task_id"}
        require(ok, "options", "a mapping with task_id and nothing else", options)
        task, self._task = self._choose(options.get("task_id")), None
        self._screen = screenshot = _see(self._desktop.reset(task))
        self._task, self._num_steps = task, 0
        return screenshot, {"task_id": task.task_id, "instruction": task.instruction}

    def step(self, action: Action) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Do one action. `info` of the last step has the evaluator's `metrics`.

        If the action ended the desktop, `info` has `desktop_ended` instead, and the last screenshot is returned again.

        Raises:
            ActionError: a desktop cannot do this action; the episode goes on.
            DesktopError: the desktop or the evaluator failed.
        """
        if self._task is None or self._screen is None:
            raise gymnasium.error.ResetNeeded("call reset() before step(), and after an episode ended")
        height, width, _ = self._screen.shape
        check_action(action, Size(width, height))
        reward = 0.0
        info: dict[str, Any] = {"task_id": self._task.task_id}
        try:
            self._screen = _see(self._desktop.step(action))
            self._num_steps += 1
            terminated = isinstance(action, (Finish, Fail))
            truncated = not terminated and self._num_steps >= self._max_steps
            if terminated or truncated:
                evaluation = self._desktop.evaluate()
                reward, info["metrics"] = evaluation.score, evaluation.metrics
                self._task = None
        except DesktopEndedError as error:
            terminated, truncated, info["desktop_ended"] = True, False, str(error)
            self._task = None
        return self._screen, reward, terminated, truncated, info

    def render(self) -> np.ndarray | None:
        """Return the newest screenshot, with `render_mode="rgb_array"`."""
        return self._screen if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self._desktop.close()

    def _choose(self, task_id: str | None) -> Task:
        if task_id is None:
            return self.tasks[int(self.np_random.integers(len(self.tasks)))]
        for task in self.tasks:
            if task.task_id == task_id:
                return task
        known = ", ".join(task.task_id for task in self.tasks)
        raise TaskError(f"options['task_id'] must be one of {known}, got {task_id!r}")

    def _screen_size(self) -> Size:
        if isinstance(self._desktop, ThreadedDesktop) and ":" not in self._desktop.config.provider:
            return self._desktop.config.screen_size
        # A user's own desktop may have another size than requested, so we look at its first screen.
        try:
            height, width, _ = _see(self._desktop.reset(self.tasks[0])).shape
        except BaseException:
            self.close()  # the caller has no environment to close
            raise
        return Size(width, height)


def _see(observation: Observation) -> np.ndarray:
    """Return the screenshot as an array that the caller may change."""
    return np.array(decode_screenshot(observation.screenshot))


class ActionSpace(spaces.Space[Action]):
    """The actions that a desktop with this screen can do."""

    def __init__(self, screen: Size):
        super().__init__()
        self.screen = screen

    def sample(self, mask: Any = None, probability: Any = None) -> Action:
        """Draw an action; its kind, then each of its parts."""
        width, height = self.screen
        start, end = (Point(self._below(width), self._below(height)) for _ in range(2))
        keys, text = (tuple(self._one_of(values) for _ in range(1 + self._below(3))) for values in (_KEYS, _TEXTS))
        actions: list[Action] = [
            Click(start, self._one_of(_BUTTONS), 1 + self._below(MAX_CLICKS)),
            Drag(start, end),
            Move(start),
            Hotkey(keys),
            TypeText("".join(text)),
            Scroll(self._one_of(_DIRECTIONS), start, 1 + self._below(10)),
            *(Wait(), Finish(), Fail()),
        ]
        return self._one_of(actions)

    def contains(self, x: Any) -> bool:
        try:
            check_action(x, self.screen)
        except ActionError:
            return False
        return True

    def _below(self, count: int) -> int:
        return int(self.np_random.integers(count))

    def _one_of(self, values: Sequence[T]) -> T:
        return values[self._below(len(values))]


def _as_tasks(tasks: TaskPath | Iterable[Task | TaskPath]) -> list[Task]:
    given = [tasks] if isinstance(tasks, (str, os.PathLike)) else list(tasks)
    found = [task for one in given for task in ([one] if isinstance(one, Task) else load_tasks(one))]
    require(bool(found), "tasks", "at least one task", found)
    return found


gymnasium.register(ENV_ID, entry_point="arpo_verl.gym:DesktopEnv", nondeterministic=True, disable_env_checker=True)
