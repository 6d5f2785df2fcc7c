"""A desktop that plays a script, without an X server or a process, and fails on command. It is for tests."""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NoReturn

from PIL import Image, ImageDraw

from arpo_verl.desktops.base import DesktopEnvironment
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.errors import (
    DesktopBootError,
    DesktopEndedError,
    DesktopError,
    DesktopLostError,
    DesktopSetupError,
    EvaluatorError,
)
from arpo_verl.lib.config import build_config, require
from arpo_verl.types import Action, Click, Evaluation, Fail, GuestAnswer, GuestRequest, Observation, Point, Size, Task

_ERRORS: dict[str, type[DesktopError]] = {
    "boot": DesktopBootError,
    "reset": DesktopSetupError,
    "step": DesktopLostError,
    "evaluate": EvaluatorError,
    "check": DesktopLostError,
}

_CLICK = re.compile(r"pyautogui\.click\((?:x=)?(\d{1,5})(?:\.\d*)?, ?(?:y=)?(\d{1,5})(?:\.\d*)?[,)]")
_DONE = {"status": "success", "output": "", "error": "", "returncode": 0}
DEFAULT_SCREEN = Size(640, 480)


@dataclass(frozen=True)
class FakeScript:
    """What a fake desktop does. It counts a desktop's calls from 1, by kind: boot, reset, step,
    evaluate and check (whether it is still alive).

    A value of `fail`, `end`, `hang` or `die` is a list of call numbers, or `[-1]` for every call.
    """

    fail: Mapping[str, list[int]] = field(default_factory=dict)
    """Calls that raise the `DesktopError` of their kind."""
    end: Mapping[str, list[int]] = field(default_factory=dict)
    """Calls that raise `DesktopEndedError`, as if the policy had ended the desktop."""
    hang: Mapping[str, list[int]] = field(default_factory=dict)
    """Calls that do not return until the desktop is closed."""
    die: Mapping[str, list[int]] = field(default_factory=dict)
    """Calls that kill the whole process, as the kernel's out-of-memory killer would."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds that a call of each kind takes."""
    success_clicks: int | None = 1
    """Clicks inside the red square that make the score 1; fewer earn a share. None: no number does."""
    desktops: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Scripts for single desktops by name, which replace this one. In a pool `desktop-0.1` is slot 0's first desktop,
    and `desktop-0.2` the one that replaces it. A task may bring a script too, as `fake` in its spec: it holds until the
    next reset, and its calls are counted from that task's reset."""

    def __post_init__(self) -> None:
        for name in ("fail", "end", "hang", "die", "seconds"):
            for kind in getattr(self, name):
                require(kind in _ERRORS, f"environment.provider_options.{name}", f"keyed by {', '.join(_ERRORS)}", kind)

    def for_desktop(self, name: str) -> FakeScript:
        """Return the script of the desktop `name`."""
        if name not in self.desktops:
            return self
        return build_config(FakeScript, f"environment.provider_options.desktops.{name}", self.desktops[name])


class FakeEnvironment(DesktopEnvironment):
    """Shows a red square that moves with each hit; the task is to click it `success_clicks` times.

    `Fail` scores 1 where the task's evaluator is OSWorld's `infeasible`.
    """

    def __init__(self, script: FakeScript | None = None, screen_size: Size = DEFAULT_SCREEN, name: str = "fake"):
        self.name = name
        self.closed = False
        self.calls: Counter[str] = Counter()
        self.actions: list[Action] = []
        self._script = (script or FakeScript()).for_desktop(name)
        self._size = screen_size
        self._task: Task | None = None
        self._task_script = FakeScript()
        self._task_calls: Counter[str] = Counter()
        self._booted = False
        self._hits = 0

    @classmethod
    def from_config(cls, config: EnvironmentConfig, name: str) -> FakeEnvironment:
        """Make one as the pool's workers do; the script is `config.provider_options`."""
        script = build_config(FakeScript, "environment.provider_options", config.provider_options)
        return cls(script, config.screen_size, name)

    def prepare(self) -> None:
        if not self._booted:
            self._play("boot")
            self._booted = True

    def is_ready(self) -> bool:
        try:
            self._play("check")
        except DesktopLostError:
            return False
        return True

    def reset(self, task: Task) -> Observation:
        self.prepare()
        self._task_script = build_config(FakeScript, f"task {task.task_id}: fake", task.spec.get("fake"))
        self._task_calls.clear()
        self._play("reset")
        self._task, self._hits = task, 0
        self.actions.clear()
        return self.look()

    def step(self, action: Action) -> Observation:
        self._play("step")
        self.actions.append(action)
        if isinstance(action, Click) and action.point is not None and self._hit(action.point):
            self._hits += 1
        return self.look()

    def ask(self, request: GuestRequest) -> GuestAnswer:
        """Answer with the screen's size, or do each `pyautogui.click(x, y)`; other requests succeed and do nothing."""
        for x, y in _CLICK.findall(request.body.decode(errors="replace")):
            self.step(Click(Point(int(x), int(y))))
        answer = self._size._asdict() if request.path == "/screen_size" else _DONE
        return GuestAnswer(HTTPStatus.OK, "application/json", json.dumps(answer).encode())

    def evaluate(self) -> Evaluation:
        self._play("evaluate")
        if self._task is None:
            raise EvaluatorError("a task must be set up before it is evaluated; call reset(task) first")
        failed = bool(self.actions) and isinstance(self.actions[-1], Fail)
        if self._task.spec.get("evaluator", {}).get("func") == "infeasible":
            return Evaluation(float(failed))
        wanted = self._script.success_clicks
        share = min(1.0, self._hits / wanted) if wanted and not failed else 0.0
        return Evaluation(float(share == 1.0), share=share)

    def close(self) -> None:
        self.closed = True

    @property
    def target(self) -> tuple[int, int, int, int]:
        """The square's left, top, right and bottom in screen pixels."""
        side = min(self._size) // 4
        left = (self._hits * side) % (self._size.width - side)
        top = (self._hits * side // 2) % (self._size.height - side)
        return left, top, left + side, top + side

    def _hit(self, point: Point) -> bool:
        left, top, right, bottom = self.target
        return left <= point.x <= right and top <= point.y <= bottom

    def look(self) -> Observation:
        image = Image.new("RGB", self._size, "white")
        draw = ImageDraw.Draw(image)
        draw.rectangle(self.target, fill="red")
        title = self._task.task_id if self._task else ""
        draw.text((4, self._size.height - 14), f"{title} {len(self.actions)}", fill="black")
        buffer = io.BytesIO()
        image.save(buffer, format="PNG", compress_level=1)
        return Observation(buffer.getvalue())

    def _play(self, kind: str) -> None:
        """Count a call and follow the script for it."""
        if self.closed:
            raise DesktopLostError(f"the fake desktop {self.name} is closed")
        for script, calls in ((self._script, self.calls), (self._task_script, self._task_calls)):
            calls[kind] += 1
            self._follow(script, kind, calls[kind])

    def _follow(self, script: FakeScript, kind: str, call: int) -> None:
        def listed(calls: Mapping[str, list[int]]) -> bool:
            return -1 in calls.get(kind, []) or call in calls.get(kind, [])

        time.sleep(script.seconds.get(kind, 0.0))
        if listed(script.die):
            os._exit(1)
        if listed(script.hang):
            self._hang()
        if listed(script.end):
            raise DesktopEndedError(f"scripted end at {kind} call {call} on {self.name}")
        if listed(script.fail):
            raise _ERRORS[kind](f"scripted failure of {kind} call {call} on {self.name}")

    def _hang(self) -> NoReturn:
        while not self.closed:
            time.sleep(0.05)
        raise DesktopLostError(f"the fake desktop {self.name} hung until it was closed")
