"""The second part of `chaos.py`: `arpo-verl train`, of which processes are killed now and then.

The embedded recipe trains in veRL's three modes, with two rollout workers and two engines, on desktops that note the
truth (`chaos_desktop`). In each run two processes get SIGKILL, each of another start: a rollout worker, an engine, the
queue's storage, the pool or Ray's head, before the start's first episode or after a drawn number of its steps. The
command starts the run again each time, and the run must reach its last step. A run of each mode is not broken; the
tasks of its steps are what those of the others must be.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from chaos_desktop import NOTES_VARIABLE, TRUTHS
from trainer_run import MODES, TASKS, Workplace, copy_tasks, read_steps

from arpo_verl.records.ended_starts import read_faults
from arpo_verl.records.json_files import append_objects, read_lines
from arpo_verl.records.metrics_files import MetricsFiles
from arpo_verl.records.starts import read_starts
from arpo_verl.tools.policy.shipped import write_shipped

Document = dict[str, Any]

KINDS: Mapping[str, str] = {
    "worker": "agentloopworker",
    "engine": "transformersserver",
    "storage": "storageunit",
    "pool": "poolactor",
    "head": "gcsserver",
}
"""What is killed, and what its command line has in it, in small letters without underscores."""
EARLY, OF_KILLS = 2, 10
"""So many kills of so many come before the first episode of a start."""
MOST_STEPS, MOST_SECONDS = 5, 4.0
"""Another kill comes at most so many steps after its start, and so many seconds after the last of them."""
KILLS_OF_A_RUN = 2
MAX_WAIT_S = 120.0
"""A run in which nothing is recorded for longer, and that does not wait for anything that it says, hangs."""
GIVE_UP_S, POLL_S = 400.0, 0.2
SAVE_FREQ, GROUPS, STEPS = 5, 4, 13
"""Steps between checkpoints, groups of a step, and steps of a run: more than two kills let a run reach."""
ENGINES: Mapping[str, tuple[str, ...]] = {
    "sync": ("trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"),
    "colocate_async": ("trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"),
    "separate_async": (
        "actor_rollout_ref.rollout.n_gpus_per_node=2",
        "ray_kwargs.ray_init.num_gpus=3",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={GROUPS // 2}",
    ),
}
"""What gives each mode two engines."""
OPTIONS = ("actor_rollout_ref.rollout.agent.num_workers=2", "environment.provider=chaos_desktop:make")
OPTIONS += (f"trainer.save_freq={SAVE_FREQ}", "+environment.evaluate_timeout_s=60", "+environment.step_timeout_s=30")
OPTIONS += ("actor_rollout_ref.rollout.n=2", "+environment.num_desktops=4", "gui_agent.max_steps=4")
KILLS_FILE = "kills.jsonl"
"""In a run's folder, the kills so far: a run that was stopped goes on."""
_CRASHED = re.compile(r"^crashed      (?:after step (\d+)|before its first step): (.*)$", re.MULTILINE)
_GOES_ON = re.compile(r"^goes on      (?:after step (\d+)|from the beginning), restart", re.MULTILINE)


class Kill(NamedTuple):
    """What is killed, and when: after so many steps of a start and seconds, or for None before its first episode."""

    kind: str
    steps: int | None
    seconds: float


def draw_kills(seed: int, mode: str, number: int) -> list[Kill]:
    """The kills of a mode, each kind as often as every other."""
    numbers = random.Random(f"{seed}-{mode}")
    drawn: list[Kill] = []
    while len(drawn) < number:
        kinds = [*KINDS] * (OF_KILLS // len(KINDS))
        numbers.shuffle(kinds)
        steps = [*[None] * EARLY, *[numbers.randint(0, MOST_STEPS) for _ in kinds[EARLY:]]]
        numbers.shuffle(steps)
        drawn += [Kill(*each, numbers.uniform(0, MOST_SECONDS)) for each in zip(kinds, steps, strict=True)]
    return drawn[:number]


def train(place: Path, document: Document, args: Any, save: Callable[[], None], leaks: Callable[[], Any]) -> None:
    """Go on until each mode has its unbroken run and has had its kills. What is in the document is not done again.

    Args:
        place: a folder. With that of a command that was stopped, its run goes on.
        document: `unbroken`, the tasks of each mode's steps, and `runs`; a run is added once it is over.
        save: called when something was added.
        leaks: what a run that has ended has left behind.
    """
    workplace = Workplace(place)
    copy_tasks(workplace.tasks, sorted({*TASKS, *list(TRUTHS)[: 2 * len(TASKS)]}))
    write_shipped("embedded", workplace.policy)
    runs, unbroken = document["runs"], document["unbroken"]
    plans = {mode: draw_kills(args.seed, mode, args.kills) for mode in (["sync"] if args.smoke else MODES)}
    for run in runs:
        del plans[run["mode"]][: len(run["kills"])]
    while any(plans.values()):
        mode = max(plans, key=lambda mode: len(plans[mode]))
        kills = plans[mode][:KILLS_OF_A_RUN] if mode in unbroken else []
        name = f"{mode}-{len(runs)}" if kills else mode
        if not kills:  # unbroken, also not by the end of this command
            shutil.rmtree(place / name, ignore_errors=True)
        run = _Run(workplace, name, mode).play(kills)
        if "failed" in run and not run["kills"]:  # nothing that was killed is to blame
            raise RuntimeError(run["failed"])
        shutil.rmtree(place / name)
        left = {name: things for name, things in leaks().items() if things}
        run |= {"leaks": sum(map(len, left.values())), "left": left}
        if kills:
            run["groups_ahead"] = groups_ahead(run["tasks"], unbroken[mode]["tasks"])
            runs.append(run)
            del plans[mode][: len(run["kills"])]
        else:
            unbroken[mode] = run
        save()


def groups_ahead(tasks: Mapping[str, list[str]], expected: Mapping[str, list[str]]) -> int:
    """The most groups at the end of a step whose tasks an unbroken run had not trained on by then.

    It is 0 in `sync`. An asynchronous mode trains on the groups that are over first, so there it may be as many as play
    at once. A start that lost or repeated tasks would be further ahead.
    """
    ours, theirs, most = Counter[str](), Counter[str](), 0
    for step in expected:
        ours.update(tasks.get(step, ()))
        theirs.update(expected[step])
        most = max(most, (ours - theirs).total(), (theirs - ours).total())
    return most


class _Run:
    """One run by `arpo-verl train`, to its last step."""

    def __init__(self, workplace: Workplace, name: str, mode: str) -> None:
        self._mode, self._numbers, self._notes = mode, random.Random(name), Path(os.environ[NOTES_VARIABLE])
        self._began, self._longest_s = time.time(), 0.0
        options = (*MODES[mode], *OPTIONS, *ENGINES[mode])
        self._trainer = workplace.start(name, STEPS, *options, groups=GROUPS, restarts=1000)

    def play(self, plan: list[Kill]) -> Document:
        """Kill as planned and await the end; return what the run came to."""
        kept = self._trainer.run_dir / KILLS_FILE
        document: Document = {"mode": self._mode, "kills": read_lines(kept, dict)}
        try:
            for kill in plan[len(document["kills"]) :]:
                self._kill(kill, document["kills"])
                append_objects(kept, document["kills"][-1:])
            self._wait(self._trainer.has_ended)
            self._trainer.wait()
        except (RuntimeError, TimeoutError) as error:
            document["failed"] = str(error)[-2000:]
        finally:
            self._trainer.stop()
        return document | self._figures()

    def _wait(self, condition: Callable[[], object]) -> None:
        """Wait for it as `wait_for` does, but not while nothing happens; note the longest time of that."""

        def is_over() -> bool:
            time.sleep(POLL_S)
            waited_s = time.time() - self._progress()
            self._longest_s = max(self._longest_s, waited_s)
            if waited_s > GIVE_UP_S:
                raise TimeoutError(f"nothing happened for {GIVE_UP_S} s:\n{self._trainer.last_words()}")
            return bool(condition())

        self._trainer.wait_for(is_over)

    def _progress(self) -> float:
        """When something last came into the run's folder, or the command printed a line."""
        run_dir, newest = self._trainer.run_dir, self._began
        for pattern in ("*.json*", self._trainer.log.name, "trajectories/step_*/*", "checkpoints/*/*"):
            for path in run_dir.glob(pattern):
                with suppress(OSError):
                    newest = max(newest, path.stat().st_mtime)
        return newest

    def _kill(self, kill: Kill, kills: list[Document]) -> None:
        """Kill a process, wait until the run is started again, and note it all."""
        trainer = self._trainer

        def victims(kind: str) -> list[psutil.Process]:
            return [each for each in trainer.processes() if KINDS[kind] in _command(each)]

        def is_due() -> bool:
            starts = read_starts(trainer.run_dir)
            if not starts or starts[-1]["time"] < self._began or not victims("pool") or not victims(kill.kind):
                return False
            return kill.steps is None or (self._plays() and len(read_steps(trainer.run_dir)) >= kill.steps)

        self._wait(is_due)
        due = time.time() + kill.seconds
        self._wait(lambda: time.time() >= due or (kill.steps is None and self._plays()))
        if not (found := victims(kill.kind)):
            raise RuntimeError(f"no {kill.kind} is left to kill:\n{trainer.last_words()}")
        kills.append({"kind": kill.kind, "before_first_episode": not self._plays()})
        crashes, killed = len(_CRASHED.findall(trainer.output())), time.time()
        self._numbers.choice(found).kill()
        self._wait(lambda: len(_CRASHED.findall(trainer.output())) > crashes)
        over = time.time()
        self._wait(lambda: len(_GOES_ON.findall(trainer.output())) > crashes)
        self._began = time.time()
        step, sentence = _CRASHED.findall(trainer.output())[crashes]
        resumed = int(_GOES_ON.findall(trainer.output())[crashes] or 0)
        seconds = {"over_after_s": round(over - killed, 1), "again_after_s": round(self._began - killed, 1)}
        repeated = max(0, int(step or 0) - resumed)
        kills[-1] |= {
            **seconds,
            "longest_wait_s": round(self._longest_s, 1),
            "resumed_after": resumed,
            "steps_repeated": repeated,
            "sentence": sentence[:300],
        }

    def _plays(self) -> bool:
        """Whether the present start has begun to play."""
        return any(p.stat().st_mtime > self._began for p in self._trainer.run_dir.glob("trajectories/step_*/*"))

    def _figures(self) -> Document:
        """What the run came to."""
        from chaos import Plan, Played

        run_dir = self._trainer.run_dir
        notes = [json.loads(line) for path in self._notes.glob("verdict-*") for line in path.read_text().splitlines()]
        recorded: dict[str, list[tuple[float, float]]] = {}
        false: list[str] = []
        for path in run_dir.glob("trajectories/step_*/[!.]*/episode.json"):
            episode = json.loads(path.read_text())
            row = f"{episode['uid']}_{episode['session']}"
            recorded.setdefault(row, []).append((path.stat().st_mtime, episode["reward"]))
            if episode["stop_reason"] == "desktop_ended":
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
        files = MetricsFiles(run_dir)
        files.refresh()
        steps = {step: data for step, data in files.by_step().items() if "replay/injected" in data}
        groups = {step: read_groups(run_dir, step) for step in steps}
        for step in steps:
            false += wrongly_trained(run_dir, step, recorded)
        trained = Counter(key for step in steps for key in played_rows(groups[step]))
        return {
            "steps": len(steps),
            "episodes": sum(map(len, recorded.values())),
            "lost": sum(int(data["environment/dropped_sessions"]) for data in steps.values()),
            "longest_wait_s": round(self._longest_s, 1),
            "hangs": int(self._longest_s > MAX_WAIT_S),
            "crashes": len(read_faults(run_dir)),
            "scored_twice": sum(count > 1 for count in trained.values()),
            "false_rewards": len(false),
            "false": false,
            "tasks": {str(step): sorted(group["task_id"] for group in groups[step]) for step in steps},
        }


def read_groups(run_dir: Path, step: int) -> list[Document]:
    """The groups that the step was trained on in the end: a start that repeats it appends its own."""
    path = run_dir / "trajectories" / f"step_{step:06d}" / "groups.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()][-GROUPS:] if path.is_file() else []


def played_rows(groups: list[Document]) -> dict[str, float]:
    """The rewards of the rows that are no replays, which are an earlier step's."""
    rows = [(group["uid"], row) for group in groups for row in group["rows"]]
    return {f"{uid}_{row['session']}": row["reward"] for uid, row in rows if row["replay"] is None}


def wrongly_trained(run_dir: Path, step: int, recorded: Mapping[str, list[tuple[float, float]]]) -> list[str]:
    """Rows of a step whose reward is not that of the recorded episode.

    Args:
        recorded: when each row's episodes were over, and their rewards: what a killed start had not trained on yet is
            played again under the same name. The newest before the step was over counts.
    """
    wrong = []
    for episode, reward in played_rows(read_groups(run_dir, step)).items():
        over = (run_dir / "trajectories" / f"step_{step:06d}" / "groups.jsonl").stat().st_mtime
        played = [each for each in recorded.get(episode, ()) if each[0] <= over]
        if played and abs(reward - max(played)[1]) > 1e-6:
            wrong.append(f"step {step}: {episode} was trained on with {reward}, recorded with {max(played)[1]}")
    return wrong


def _command(process: psutil.Process) -> str:
    """Its first two words, in small letters without underscores."""
    try:
        return " ".join(process.cmdline()[:2]).lower().replace("_", "")
    except psutil.Error:  # it has ended
        return ""


def summarize(document: Document) -> Document:
    """Figures of all runs, behind what they are of."""
    runs = document["runs"]
    kills = [kill for run in runs for kill in run["kills"] if "sentence" in kill]

    def by_kind(name: str) -> Document:
        return {kind: [kill[name] for kill in kills if kill["kind"] == kind] for kind in KINDS}

    names = ("hangs", "episodes", "lost", "false_rewards", "scored_twice", "leaks")
    return {
        "kills": len(kills),
        "before_first_episode": sum(kill["before_first_episode"] for kill in kills),
        "unfinished_runs": sum("failed" in run or run["steps"] != STEPS for run in runs),
        "groups_ahead": {
            mode: max((run["groups_ahead"] for run in runs if run["mode"] == mode), default=0) for mode in MODES
        },
        **{name: sum(run[name] for run in (*runs, *document["unbroken"].values())) for name in names},
        **{name: by_kind(name) for name in ("steps_repeated", "over_after_s")},
        **document,
    }
