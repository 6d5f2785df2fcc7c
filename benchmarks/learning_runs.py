"""The runs of the learning study: one method and seed each, through the stock trainer, for so many environment steps.

A run's folder says all that is measured of it: every episode is recorded as it is played, those too that dynamic
sampling throws away, so that methods are compared by the steps that their agents took on desktops.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock
from tqdm import tqdm
from trainer_run import ROOT, TrainerRun

from arpo_verl.records.layout import TRAJECTORIES
from arpo_verl.records.run import Run, open_run
from arpo_verl.records.summaries import EpisodeSummary

BASE = "base"
RECIPE = ROOT / "recipes" / "families.yaml"
METHODS: Mapping[str, tuple[str, ...]] = {
    "grpo": ("+baseline=grpo",),
    "arpo": (),
    "dynamic_sampling": ("+baseline=dynamic_sampling",),
    "arpo_dynamic": ("+baseline=arpo_dynamic",),
}
"""What stands behind the common command line."""

HELD_OUT_SPLITS = ("held_out_seeds", "held_out_words", "held_out_themes", "held_out_families")
EVALUATED_ON: Mapping[str, Sequence[str]] = {
    "training_tasks": ("training",),
    "held_out": HELD_OUT_SPLITS,
    **{split: (split,) for split in HELD_OUT_SPLITS},
}
"""What success is told of, by splits of the families of tasks."""
TEMPERATURES = (1.0, 0.6)
"""At which checkpoints are evaluated: the training's and the paper's."""
ATTEMPTS = 3
"""At a run: a trainer's start may fail by the way, as when another process takes the port that it has just chosen."""
POLL_S = 2.0
DONE = "done.json"
FINAL_SHARE = 1 / 3
"""The end of a run, as a share of its environment steps, over which success is averaged."""


@dataclass(frozen=True)
class Study:
    """What all runs share."""

    policy: Path
    tasks: Path
    """Folder of the training tasks."""
    held_out: Path
    """Folder of those that are evaluated on alone."""
    environment_steps: int
    """Budget of a run: replies of its policy in the episodes of training, those thrown away included."""
    group_size: int
    groups_per_task: int
    """In a training step, which has all tasks."""
    learning_rate: float
    save_every: int
    """Training steps between checkpoints."""
    top_p: float
    """Of all replies, in training and validation."""
    evaluated_rollouts: ClassVar[int] = 2
    """Of each task, by the warm start or a run's last checkpoint."""

    @property
    def groups(self) -> int:
        """Groups in a training step."""
        return self.groups_per_task * len(list(self.tasks.glob("*.json")))

    def overrides(self, method: str, seed: int) -> list[str]:
        """The options behind the recipe."""
        groups = self.groups
        return [
            f"actor_rollout_ref.model.path={self.policy}",
            f"data.train_files={self.tasks}",
            f"data.val_files=[{self.tasks},{self.held_out}]",
            f"+data.tasks.repeat={self.groups_per_task}",
            f"data.train_batch_size={groups}",
            f"data.seed={seed}",
            f"++actor_rollout_ref.rollout.seed={seed}",
            f"actor_rollout_ref.rollout.n={self.group_size}",
            f"actor_rollout_ref.rollout.top_p={self.top_p}",
            f"actor_rollout_ref.rollout.val_kwargs.top_p={self.top_p}",
            "actor_rollout_ref.rollout.val_kwargs.temperature=0.6",
            # Four updates a step, as in the recipe.
            f"actor_rollout_ref.actor.ppo_mini_batch_size={groups // 4}",
            f"actor_rollout_ref.actor.optim.lr={self.learning_rate}",
            # How many training steps the budget is, is not known before: no schedule, and an end far away.
            "actor_rollout_ref.actor.optim.lr_scheduler_type=constant",
            "trainer.total_epochs=1000000",
            "trainer.total_training_steps=1000000",
            "trainer.val_before_train=false",
            "trainer.test_freq=-1",
            f"trainer.save_freq={self.save_every}",
            *METHODS.get(method, ()),
        ]


@dataclass(frozen=True)
class Point:
    """One training step, as its episodes tell it."""

    environment_steps: int
    """From the beginning of training to this step's end."""
    success: float
    """Of the episodes that no past success helped."""
    episodes: int
    informative: float
    """Share of groups, of those played, whose rewards differ."""
    all_failed: float


@dataclass(frozen=True)
class Curve:
    """One run."""

    method: str
    seed: int
    points: tuple[Point, ...]
    replays: int
    wall_s: float

    def ended(self, budget: int) -> list[Point]:
        """The training steps that ended within the budget.

        Not the one that the run was ended in, its last, unless it was the first: of its episodes the shortest were
        over, which may have used up the budget to the step.
        """
        whole = self.points[:-1]
        return [point for point in whole if point.environment_steps <= budget] or list(self.points[:1])

    def success_at(self, environment_steps: float, window: float, budget: int) -> float:
        """Mean success, at temperature 1, of the steps that end at most half a window before or after a moment.

        Where none does it is that of the nearest.
        """
        ended = self.ended(budget)
        near = [p for p in ended if abs(p.environment_steps - environment_steps) <= window / 2]
        near = near or [min(ended, key=lambda p: abs(p.environment_steps - environment_steps))]
        return _success(near)

    def final_success(self, budget: int) -> float:
        """Mean success, at temperature 1, in the training steps that ended in the last `FINAL_SHARE` of the budget.

        With dynamic sampling a step may be longer than that share; then it is the last one that ended.
        """
        ended = self.ended(budget)
        last = [p for p in ended if p.environment_steps > (1 - FINAL_SHARE) * budget] or ended[-1:]
        return _success(last)

    def steps_to(self, success: float, window: float, budget: int) -> int:
        """Environment steps until the first training step about which `success_at` is so high; else the budget."""
        ended = (point.environment_steps for point in self.ended(budget))
        return next((steps for steps in ended if self.success_at(steps, window, budget) >= success), budget)


@dataclass(frozen=True)
class Result:
    """What is kept of a run: all that a figure is made of, so that a study goes on elsewhere."""

    policy: str
    """SHA-256 of the warm start's weights."""
    curve: Curve
    evaluated: Mapping[str, Mapping[str, float]]
    """By temperature and task, success in [0, 1]."""

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Result:
        """From what `dataclasses.asdict` made of it."""
        curve = row["curve"] | {"points": tuple(Point(**point) for point in row["curve"]["points"])}
        return cls(row["policy"], Curve(**curve), row["evaluated"])


def train(study: Study, folder: Path, method: str, seed: int, title: str) -> Curve:
    """Run, or go on with, one method and seed until its budget is used up; a finished run is only read.

    Args:
        title: of its progress bar.

    Raises:
        RuntimeError: the trainer ended by itself, and did so at each attempt.
    """
    run_dir = folder / f"{method}-{seed}"
    done = run_dir / DONE
    run_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{run_dir}.lock"), tqdm(total=study.environment_steps, desc=title, unit="step") as bar:

        def show(steps: int) -> None:
            bar.update(steps - bar.n)

        for attempt in range(1, ATTEMPTS + 1):
            if done.is_file() and json.loads(done.read_text())["environment_steps"] >= study.environment_steps:
                break
            _train_until(study, run_dir, study.overrides(method, seed), show, last=attempt == ATTEMPTS)
        show(study.environment_steps)
    return read_curve(run_dir, method, seed)


def _train_until(
    study: Study, run_dir: Path, overrides: Sequence[str], progress: Callable[[int], None], last: bool
) -> None:
    """Train from the last checkpoint until the budget is used up, or until the trainer ends by itself."""
    run_dir.mkdir(parents=True, exist_ok=True)
    _forget_after_checkpoint(run_dir)
    seconds = _seconds_so_far(run_dir)
    began = time.monotonic()
    records = Run(run_dir, run_dir / TRAJECTORIES)
    run = TrainerRun(run_dir, *overrides, recipe=RECIPE)
    try:
        while (steps := _environment_steps(records)) < study.environment_steps:
            progress(steps)
            time.sleep(POLL_S)
            if run.has_ended():
                if last:
                    raise RuntimeError(f"the trainer ended before its budget:\n{run.last_words()}")
                return
    finally:
        run.stop()
        (run_dir / "seconds.json").write_text(json.dumps(seconds + time.monotonic() - began))
    (run_dir / DONE).write_text(json.dumps({"environment_steps": steps}) + "\n")


def evaluate(study: Study, folder: Path, method: str, seed: int, temperature: float) -> dict[str, float]:
    """Play each task, of training and held out, by a run's last checkpoint, or as `base` by the warm start.

    Returns:
        Success by task, in [0, 1].

    Raises:
        RuntimeError: the trainer failed.
    """
    of_run = folder / f"{method}-{seed}"
    options = [
        f"actor_rollout_ref.rollout.val_kwargs.{name}"
        for name in (f"temperature={temperature}", f"n={study.evaluated_rollouts}")
    ]
    run_dir = of_run / f"evaluated-{temperature}"
    run_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{run_dir}.lock"):  # two calls with one folder have one warm start
        return play_all(run_dir, [*study.overrides(method, seed), *options], last_checkpoint(of_run))


def last_checkpoint(run_dir: Path) -> Path | None:
    """Of a run; None where it was ended within its first step, and is still its warm start."""
    tracker = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
    return run_dir / "checkpoints" / f"global_step_{tracker.read_text().strip()}" if tracker.is_file() else None


def play_all(run_dir: Path, overrides: Sequence[str], checkpoint: Path | None) -> dict[str, float]:
    """Validate on all tasks, by a run's checkpoint or by the warm start; what was played is only read.

    Returns:
        Success by task, in [0, 1].

    Raises:
        RuntimeError: the trainer failed, or sessions were lost.
    """
    done = run_dir / "done"
    if not done.is_file():
        shutil.rmtree(run_dir / TRAJECTORIES, ignore_errors=True)  # of an evaluation that was ended midway
        options = [*overrides, "trainer.val_before_train=true", "trainer.val_only=true"]
        if checkpoint is not None:
            options += ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={checkpoint}"]
        TrainerRun(run_dir, *options, recipe=RECIPE).wait()
    by_task: dict[str, list[float]] = {}
    for episode in open_run(run_dir).episodes():
        by_task.setdefault(episode.task_id, []).append(episode.success or 0.0)
    rollouts = {task_id: len(successes) for task_id, successes in by_task.items()}
    if len(set(rollouts.values())) != 1:
        raise RuntimeError(f"each task must have been played equally often, got {rollouts}: evaluate it again")
    done.touch()
    return {task_id: statistics.fmean(successes) for task_id, successes in sorted(by_task.items())}


def _forget_after_checkpoint(run_dir: Path) -> None:
    """Remove the records of the steps that a run which goes on from its checkpoint does again."""
    tracker = run_dir / "checkpoints" / "latest_checkpointed_iteration.txt"
    last = int(tracker.read_text()) if tracker.is_file() else 0
    for folder in (run_dir / TRAJECTORIES).glob("step_*"):
        if int(folder.name.removeprefix("step_")) > last:
            shutil.rmtree(folder)


def _seconds_so_far(run_dir: Path) -> float:
    path = run_dir / "seconds.json"
    return json.loads(path.read_text()) if path.is_file() else 0.0


def _environment_steps(records: Run) -> int:
    return sum(episode.num_turns for episode in records.snapshot().episodes if not episode.validation)


def read_curve(run_dir: Path, method: str, seed: int) -> Curve:
    """What a run's folder says of it."""
    by_step: dict[int, list[EpisodeSummary]] = defaultdict(list)
    snapshot = open_run(run_dir).snapshot()
    for episode in snapshot.episodes:
        by_step[episode.step].append(episode)
    points: list[Point] = []
    total = 0
    for _, episodes in sorted(by_step.items()):
        training = [episode for episode in episodes if not episode.validation]
        total += sum(episode.num_turns for episode in training)
        if training:
            points.append(_point(training, total))
    replays = sum(row.replay is not None for group in open_run(run_dir).groups() for row in group.rows)
    return Curve(method, seed, tuple(points), replays, _seconds_so_far(run_dir))


def _point(episodes: Sequence[EpisodeSummary], environment_steps: int) -> Point:
    groups = list(_groups(episodes))
    return Point(
        environment_steps,
        statistics.fmean(episode.success or 0.0 for episode in episodes),
        len(episodes),
        statistics.fmean(len({episode.reward for episode in group}) > 1 for group in groups),
        statistics.fmean(not any(episode.success for episode in group) for group in groups),
    )


def _success(points: Sequence[Point]) -> float:
    return sum(p.success * p.episodes for p in points) / sum(p.episodes for p in points)


def _groups(episodes: Sequence[EpisodeSummary]) -> Iterator[list[EpisodeSummary]]:
    by_uid: dict[str, list[EpisodeSummary]] = defaultdict(list)
    for episode in episodes:
        by_uid[episode.uid].append(episode)
    yield from by_uid.values()
