"""The second part of `chaos.py`: runs of the stock trainer, of which a process is killed now and then.

The embedded recipe trains in veRL's three modes, with two rollout workers and two engines, on desktops that note the
truth (`chaos_desktop`). At a drawn moment one process gets SIGKILL: a rollout worker (the run goes on), an engine that
answers (the step is trained to its end, then the run ends), the queue's storage or Ray's head (the run ends). A run
that has ended is started again by the same command, until the mode has had its kills.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from chaos_desktop import NOTES_VARIABLE
from trainer_run import MODES, TrainerRun, Workplace, copy_tasks, read_steps

from arpo_verl.policy.shipped import write_shipped

Document = dict[str, Any]

KINDS: Mapping[str, tuple[str, ...]] = {
    "worker": ("agentloopworker",),
    "engine": ("transformersserver",),
    "storage": ("storageunit",),
    "head": ("gcsserver",),
}
"""What is killed, and what its command line has in it, in small letters without underscores."""
SHARES = {"worker": 3, "engine": 3, "storage": 2, "head": 2}
"""How often each of them is, in ten kills."""
GOES_ON_AFTER = {"worker": 0, "engine": 2, "storage": 2, "head": 2}
"""A run that has trained more steps behind a kill goes on: it did not need what was killed. Of the engines of
`separate_async` one is the trainer's own, which answers nobody."""
SMOKE, SMOKE_MOMENT_S = ("worker", "storage"), 10.0
MAX_MOMENT_S = 60.0
"""A kill comes at most so long after the first episode of its start, or after the kill before: a step takes less."""
MAX_WAIT_S = 120.0
"""A run in which nothing happens for longer, and that does not end, hangs."""
START_S = GIVE_UP_S = 900.0
STEPS = 1000
"""More than any run reaches."""
ENGINES: Mapping[str, tuple[str, ...]] = {
    "sync": ("trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"),
    "colocate_async": ("trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"),
    "separate_async": ("actor_rollout_ref.rollout.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=3"),
}
"""What gives each mode two engines."""
OPTIONS = ("actor_rollout_ref.rollout.agent.num_workers=2", "environment.provider=chaos_desktop:make")
OPTIONS += ("trainer.save_freq=1", "+environment.evaluate_timeout_s=60", "+environment.step_timeout_s=30")


def draw_kills(seed: int, mode: str, number: int) -> list[tuple[str, float]]:
    """What is killed in a mode, one after the other, and how many seconds after its start or the kill before."""
    numbers = random.Random(f"{seed}-{mode}")
    kinds = [kind for kind, share in SHARES.items() for _ in range(share)]
    drawn: list[tuple[str, float]] = []
    while len(drawn) < number:
        numbers.shuffle(kinds)
        drawn += [(kind, numbers.uniform(0, MAX_MOMENT_S)) for kind in kinds]
    return drawn[:number]


def train(place: Path, starts: list[Document], args: Any, save: Callable[[], None], leaks: Callable[[], Any]) -> None:
    """Go on until each mode has had its kills.

    Args:
        place: an empty folder.
        starts: each start of a trainer so far, with its kills; what happens is added.
        save: called when something was added.
        leaks: what a run that has ended has left behind.
    """
    workplace = Workplace(place)
    copy_tasks(workplace.tasks)
    write_shipped("embedded", workplace.policy)
    plans = {mode: draw_kills(args.seed, mode, args.kills) for mode in MODES}
    if args.smoke:
        plans = {"sync": [(kind, SMOKE_MOMENT_S) for kind in SMOKE]}
    for start in starts:
        del plans[start["mode"]][: len(start["kills"])]
    while any(plans.values()):
        mode = max(plans, key=lambda mode: len(plans[mode]))
        starts.append({"mode": mode, "kills": []})
        try:
            _Start(workplace, starts[-1], save).play(plans[mode])
            left = {name: things for name, things in leaks().items() if things}
            starts[-1] |= {"leaks": sum(map(len, left.values())), "left": left}
        finally:  # also where somebody ends the benchmark
            save()


class _Start:
    """One start of the trainer, to its end."""

    def __init__(self, workplace: Workplace, document: Document, save: Callable[[], None]) -> None:
        self._document, self._save, self._began = document, save, time.time()
        mode = document["mode"]
        self._notes = Path(os.environ[NOTES_VARIABLE])
        self._trainer = workplace.start(mode, STEPS, *MODES[mode], *OPTIONS, *ENGINES[mode])

    def play(self, plan: list[tuple[str, float]]) -> None:
        """Take kills from the plan until the run ends, or the plan does."""
        trainer = self._trainer
        try:
            trainer.wait_for(self._has_played, START_S)
            self._document["started_s"] = round(time.time() - self._began, 1)
            while plan and not self._document.get("is_over"):
                kind, seconds = plan.pop(0)
                self._kill(kind, seconds)
                self._save()
        except (RuntimeError, TimeoutError) as error:
            self._document["failed"] = str(error)[-2000:]
            if not self._document["kills"]:  # nothing that was killed is to blame
                raise
        finally:
            trainer.stop()
            self._document |= self._figures()

    def _has_played(self) -> bool:
        return any(path.stat().st_mtime > self._began for path in self._episodes())

    def _episodes(self) -> list[Path]:
        return list(self._trainer.run_dir.glob("trajectories/step_*/[!.]*/episode.json"))

    def _kill(self, kind: str, seconds: float) -> None:
        trainer, due = self._trainer, time.monotonic() + seconds
        trainer.wait_for(lambda: time.monotonic() >= due)
        victims = [process for process in trainer.processes() if _is(process, KINDS[kind])]
        if not victims:
            raise RuntimeError(f"no {kind} to kill among {[_command(process) for process in trainer.processes()]}")
        steps = len(read_steps(trainer.run_dir))
        victims[0].kill()
        killed = time.monotonic()
        longest_s, seen, changed = 0.0, self._progress(), killed
        while not (is_over := trainer.has_ended()):
            time.sleep(0.2)
            if self._progress() != seen:
                seen, changed = self._progress(), time.monotonic()
            longest_s = max(longest_s, time.monotonic() - changed)
            if len(read_steps(trainer.run_dir)) > steps + GOES_ON_AFTER[kind]:
                break
            if time.monotonic() - killed > GIVE_UP_S:
                is_over = True
                break
        self._document["is_over"] = is_over
        self._document["kills"].append(
            {
                **{"kind": kind, "after_s": round(seconds, 1), "steps_before": steps},
                **{"longest_wait_s": round(longest_s, 1), "hangs": longest_s > MAX_WAIT_S, "is_over": is_over},
                **{"seconds": round(time.monotonic() - killed, 1), "error": _last_error(trainer) if is_over else ""},
            }
        )

    def _progress(self) -> float:
        """When something last came into the run's folder."""
        run_dir = self._trainer.run_dir
        found = [run_dir / "metrics.jsonl", *run_dir.glob("trajectories/step_*/*"), *run_dir.glob("checkpoints/*/*")]
        newest = 0.0
        for path in found:
            with suppress(OSError):
                newest = max(newest, path.stat().st_mtime)
        return newest

    def _figures(self) -> Document:
        """What the start came to."""
        from chaos import Plan, Played

        notes = [json.loads(line) for path in self._notes.glob("verdict-*") for line in path.read_text().splitlines()]
        recorded: dict[str, list[tuple[float, float]]] = {}
        false = []
        for path in self._episodes():
            episode = json.loads(path.read_text())
            row = f"{episode['uid']}_{episode['session']}"
            recorded.setdefault(row, []).append((path.stat().st_mtime, episode["reward"]))
            if path.stat().st_mtime < self._began or episode["stop_reason"] == "desktop_ended":
                continue
            desktop, began = episode["desktop"].split()[0], episode["started_at"]
            theirs = [
                note
                for note in notes
                if (note["desktop"], note["task_id"]) == (desktop, episode["task_id"])
                and began <= note["time"] <= began + episode["wall_s"] + 1
            ]
            plan = Plan(episode["uid"], episode["task_id"], is_lazy=False)
            earned = episode["reward"] + episode["format_error"]  # a malformed reply costs 1
            if Played(plan, reward=earned, success=episode["success"], notes=theirs).is_false:
                false.append(str(path.parent))
        steps = read_steps(self._trainer.run_dir)
        for step in steps:
            false += _wrongly_trained(self._trainer.run_dir, step, recorded)
        return {
            "steps": sorted(steps),
            "episodes": sum(path.stat().st_mtime >= self._began for path in self._episodes()),
            "lost": sum(int(data["environment/dropped_sessions"]) for data in steps.values()),
            "false_rewards": len(false),
            "false": false,
        }


def _wrongly_trained(run_dir: Path, step: int, recorded: Mapping[str, list[tuple[float, float]]]) -> list[str]:
    """Rows of a step whose reward is not that of the recorded episode; a replay is an earlier one's.

    Args:
        recorded: when each row's episodes were over, and their rewards: what a killed start had not trained on yet is
            played again under the same name. The newest before the step was over counts.
    """
    path = run_dir / "trajectories" / f"step_{step:06d}" / "groups.jsonl"
    groups = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    rows = {f"{group['uid']}_{row['session']}": row for group in groups for row in group["rows"]}
    wrong = []
    for episode, row in rows.items():
        played = [each for each in recorded.get(episode, ()) if each[0] <= path.stat().st_mtime]
        if row["replay"] is None and played and abs(row["reward"] - max(played)[1]) > 1e-6:
            wrong.append(f"step {step}: {episode} was trained on with {row['reward']}, recorded with {max(played)[1]}")
    return wrong


def _is(process: psutil.Process, words: tuple[str, ...]) -> bool:
    return any(word in _command(process).lower().replace("_", "") for word in words)


def _command(process: psutil.Process) -> str:
    """Its first two words."""
    try:
        return " ".join(process.cmdline()[:2])
    except psutil.Error:  # it has ended
        return ""


def _last_error(trainer: TrainerRun) -> str:
    """What the run said at its end."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", trainer.output())
    found: list[str] = re.findall(r"^.*?((?:\w+\.)*\w+Error: .*|\w*GCS .*)$", plain, re.MULTILINE)
    return found[-1][:600] if found else plain[-300:]


def summarize(starts: list[Document]) -> Document:
    """Figures of all starts."""
    kills = [(start["mode"], kill) for start in starts for kill in start["kills"]]
    by_kind = {
        f"{mode}/{kind}": {
            "kills": len(those),
            "hangs": sum(kill["hangs"] for kill in those),
            "longest_wait_s": max(kill["longest_wait_s"] for kill in those),
            "over_after_s": [kill["seconds"] for kill in those if kill["is_over"]],
        }
        for mode in MODES
        for kind in KINDS
        if (those := [kill for where, kill in kills if (where, kill["kind"]) == (mode, kind)])
    }
    totals = {name: sum(start.get(name, 0) for start in starts) for name in ("episodes", "false_rewards", "leaks")}
    return {
        "kills": len(kills),
        "hangs": sum(kill["hangs"] for _, kill in kills),
        **totals,
        "lost": sum(start.get("lost", 0) for start in starts),
        "failed_starts": sum("failed" in start for start in starts),
        "by_kind": by_kind,
        "starts": starts,
    }
