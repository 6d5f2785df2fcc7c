"""A few episodes to look at: rare successes and unexpected failures, as film strips of small screenshots."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arpo_verl.records.film_strip import Frame, thumbnail
from arpo_verl.records.run import Run
from arpo_verl.records.summaries import EpisodeSummary
from arpo_verl.untrusted import read_regular
from arpo_verl.viewer.report.success import TaskSuccess

EPISODES_A_KIND = 3
MAX_FRAMES = 12
FRAME_WIDTH = 300
WEBP_QUALITY = 70
REPLY_CHARACTERS = 400
_USUAL = {"button": "left", "count": 1}
IMAGE_BYTES = 3 * 1024**2
"""Of all images together, as they lie in the file: with the text, below some 5 MB."""


@dataclass(frozen=True)
class Shot:
    """A screenshot and what the agent did then."""

    image: str | None
    """A `data:` address; None where the screenshot is not there or did not fit."""
    width: int
    height: int
    thought: str
    actions: str
    error: str
    """Why the reply could not be parsed; empty where it could."""
    reply: str
    """The raw reply, its beginning."""

    @property
    def alt(self) -> str:
        return f"Screenshot, before: {self.actions or self.error or 'nothing'}"


@dataclass(frozen=True)
class Sample:
    """An episode of the report."""

    episode: EpisodeSummary
    task: TaskSuccess
    advantage: float | None
    replaced: bool
    shots: list[Shot]
    frames_left_out: int
    verdict: list[str]
    """What the evaluator's metrics saw."""


@dataclass(frozen=True)
class Samples:
    """`best`: successes in the tasks that are solved least often, the shortest of the latest step. `worst`: failures
    in those solved most often, the lowest reward of the latest step."""

    best: list[Sample]
    worst: list[Sample]


def choose_samples(run: Run, training: Sequence[EpisodeSummary], tasks: Sequence[TaskSuccess]) -> Samples:
    """Choose the episodes and make their pictures."""
    successes = [episode for episode in training if episode.success is not None and episode.success >= 1]
    failures = [episode for episode in training if episode.success is not None and episode.success < 1]
    best = _one_a_task(tasks, successes, key=lambda episode: (episode.step, -episode.num_turns))
    worst = _one_a_task(tasks[::-1], failures, key=lambda episode: (episode.step, -(episode.reward or 0.0)))
    budget = _Budget(IMAGE_BYTES)
    return Samples(*([_sample(run, task, episode, budget) for task, episode in chosen] for chosen in (best, worst)))


def _one_a_task(
    tasks: Sequence[TaskSuccess], episodes: Sequence[EpisodeSummary], key: Any
) -> list[tuple[TaskSuccess, EpisodeSummary]]:
    chosen = []
    for task in tasks:
        of_task = [episode for episode in episodes if episode.task_id == task.task_id]
        if of_task:
            chosen.append((task, max(of_task, key=key)))
        if len(chosen) == EPISODES_A_KIND:
            break
    return chosen


@dataclass
class _Budget:
    left: int

    def take(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


def _sample(run: Run, task: TaskSuccess, episode: EpisodeSummary, budget: _Budget) -> Sample:
    try:
        content = run.episode(episode.id)
    except KeyError:  # removed while the report is made
        content = {}
    turns = [turn for turn in _list(content.get("turns")) if isinstance(turn, dict)]
    training = run.snapshot().training(episode.id)
    return Sample(
        episode=episode,
        task=task,
        advantage=training.advantage,
        replaced=training.replaced,
        shots=[_shot(run, episode.id, number, turn, budget) for number, turn in enumerate(turns[:MAX_FRAMES])],
        frames_left_out=max(0, len(turns) - MAX_FRAMES),
        verdict=[_verdict(call) for call in _list(content.get("evaluator")) if isinstance(call, dict)],
    )


def _shot(run: Run, episode_id: str, number: int, turn: Mapping[str, Any], budget: _Budget) -> Shot:
    actions = [action for action in _list(turn.get("actions")) if isinstance(action, dict)]
    points = tuple(point for action in actions for point in points_of(action))
    screenshot = _read_screenshot(run, episode_id, turn.get("screenshot", number))
    picture = thumbnail(Frame(screenshot, "", points), FRAME_WIDTH)
    image = None
    if screenshot is not None:
        stream = io.BytesIO()
        picture.save(stream, "WEBP", quality=WEBP_QUALITY)
        encoded = base64.b64encode(stream.getvalue()).decode("ascii")
        image = f"data:image/webp;base64,{encoded}" if budget.take(len(encoded)) else None
    return Shot(
        image=image,
        width=picture.width,
        height=picture.height,
        thought=_text(turn.get("thought")),
        actions="; ".join(describe_action(action) for action in actions),
        error=_text(turn.get("parse_error")),
        reply=_text(turn.get("text"))[:REPLY_CHARACTERS],
    )


def _read_screenshot(run: Run, episode_id: str, number: object) -> bytes | None:
    if not isinstance(number, int):
        return None
    try:
        files = sorted(run.folder(episode_id).glob(f"{number:02d}.*"))
        return read_regular(files[0]) if files else None
    except (KeyError, OSError):
        return None


def points_of(action: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Where a recorded action points, in pixels of the screen, in order."""
    values = (action.get(name) for name in ("start", "point", "end"))
    return [
        (float(value[0]), float(value[1]))
        for value in values
        if isinstance(value, list) and len(value) == 2 and all(isinstance(number, (int, float)) for number in value)
    ]


def describe_action(action: Mapping[str, Any]) -> str:
    """A recorded action in words: its name and its values, but for those that nearly every action has."""
    values = [
        _value(value)
        for name, value in action.items()
        if name != "action" and value not in (None, "") and _USUAL.get(name) != value
    ]
    return " ".join([str(action.get("action", "")), *values])


def _value(value: object) -> str:
    if isinstance(value, list):
        words = [str(item) for item in value]
        return "+".join(words) if all(isinstance(item, str) for item in value) else f"({', '.join(words)})"
    return json.dumps(value, ensure_ascii=False)


def _verdict(call: Mapping[str, Any]) -> str:
    names = ("metric", "result", "expected", "returned")
    metric, result, expected, returned = (str(call.get(name, "")) for name in names)
    return f"{metric} found {result}, expected {expected}: {returned}"


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
