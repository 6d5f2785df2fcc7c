"""Random lives of a store of successes: additions, evictions, saves, kills, restores, against a plain model.

    python benchmarks/replay_store_property.py [--smoke] [--sequences N] [--kills N] [--seed N] [--json PATH]

After every operation: never over the capacity, nothing of another task, contents and order as specified. After every
kill the folder holds the store of the last save or of the one before, whole. Kills come in two kinds. In the sequences
a save ends at a random file operation or the power fails right after it, and what was not yet synced is lost as a power
cut loses it: tails of files, and names of files and folders. And a real process that saves in a loop is killed with
SIGKILL at random moments.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from figures import Arguments, report

from arpo_verl.errors import ReplayError
from arpo_verl.lib import files
from arpo_verl.replay.store import persistence
from arpo_verl.replay.store.persistence import MANIFEST, SCREENSHOTS, Fingerprint, load_store, save_store
from arpo_verl.replay.store.record import read_record
from arpo_verl.replay.store.success_store import StoredTrajectory, SuccessStore

FINGERPRINT = Fingerprint(tokenizer="t", processor="p", prompt="q")
MEMORY_DISK = Path("/dev/shm")
"""Waits for no real disk: the sequences sync a hundred thousand times."""

TASKS = ("alpha", "beta", "gamma", "delta")


# --- The model: what a store must be, with lists and no cleverness --------------------------------------------------


@dataclass
class Model:
    """Trajectories in order of age, which is the order in which they leave."""

    per_task: int
    held: list[StoredTrajectory] = field(default_factory=list)

    def copy(self) -> Model:
        return Model(self.per_task, list(self.held))

    def add(self, trajectory: StoredTrajectory) -> None:
        self.held.append(trajectory)
        of_task = [held for held in self.held if held.task_id == trajectory.task_id]
        if len(of_task) > self.per_task:
            self.held.remove(of_task[0])

    def is_like(self, store: SuccessStore) -> bool:
        """Whether the store holds the same, in the same order."""
        steps = [trajectory.step for trajectory in self.held]
        return store.trajectories() == tuple(self.held) and steps == [
            read_record(record.record)["step"] for _, record in store.records()
        ]

    @property
    def screenshot_bytes(self) -> int:
        return sum(map(len, {screenshot for trajectory in self.held for screenshot in trajectory.screenshots}))


# --- A disk that loses what was not synced -----------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing may handle this."""


class FailingDisk:
    """Stands for `os` in `lib/files.py`: raises `Killed` from the n-th change on, and then forgets what was not synced.

    Args:
        new_folders: those that are not there yet, and whose names are lost too unless their parents are synced.
    """

    def __init__(self, changes_left: int, rng: random.Random, new_folders: Iterable[Path] = ()) -> None:
        self._left = changes_left
        self._rng = rng
        self._paths: dict[int, Path] = {}  # by descriptor
        self._unsynced: set[int] = set()  # inodes
        # Names not yet synced: what was there before.
        self._undo: dict[Path, bytes | None] = dict.fromkeys(new_folders)
        self.changes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _change(self) -> None:
        self.changes += 1
        self._left -= 1
        if self._left < 0:
            raise Killed

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            self._change()
        descriptor = os.open(path, flags, mode)
        self._paths[descriptor] = Path(path)
        if flags & os.O_CREAT:
            self._unsynced.add(os.fstat(descriptor).st_ino)
        return descriptor

    def write(self, descriptor: int, data: Any) -> int:
        if self._left <= 0:
            os.write(descriptor, data[: self._rng.randrange(len(data) + 1)])
        self._change()
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self._change()
        path = self._paths[descriptor]
        if path.is_dir():
            self._undo = {name: before for name, before in self._undo.items() if name.parent != path}
        else:
            self._unsynced.discard(os.fstat(descriptor).st_ino)

    def replace(self, source: Any, target: Any) -> None:
        self._change()
        target = Path(target)
        self._undo.setdefault(target, target.read_bytes() if target.exists() else None)
        os.replace(source, target)

    def link(self, source: Any, target: Any) -> None:
        self._change()
        os.link(source, target)
        self._undo.setdefault(Path(target), None)

    def unlink(self, path: Any) -> None:
        self._change()
        os.unlink(path)
        self._undo.pop(Path(path), None)

    def lose_power(self, folder: Path) -> None:
        """Have the files below `folder` be what a machine could find after its power came back."""
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            if path.stat().st_ino in self._unsynced:
                os.truncate(path, self._rng.randrange(path.stat().st_size + 1))
        for path, before in self._undo.items():
            if path.exists() and self._rng.random() < 0.5:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                if before is not None:
                    path.write_bytes(before)


# --- One life ------------------------------------------------------------------------------------------------------


class Life:
    """A store and its model through a random sequence of operations."""

    def __init__(self, seed: int, scratch: Path) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self._folder = scratch / f"life-{seed}"
        self._per_task = self.rng.randint(1, 4)
        self._store = SuccessStore(self._per_task)
        self._model = Model(self._per_task)
        self._saved: dict[Path, Model] = {}
        self._step = 0

    def run(self, operations: int) -> Counter[str]:
        """Do and check.

        Raises:
            AssertionError: a promise was broken; the message says in which life.
        """
        choices = [self._add] * 8 + [self._save] * 2 + [self._kill] * 2 + [self._restore]
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            for _ in range(operations):
                operation = self.rng.choice(choices)
                operation()
                self.counts[operation.__name__.strip("_")] += 1
                self._check()
        except AssertionError as error:
            raise AssertionError(f"life {self.seed} ({self._per_task} a task): {error}") from error
        finally:
            del self._store
            shutil.rmtree(self._folder)
        return self.counts

    def _add(self) -> None:
        self._step += 1
        trajectory = draw_trajectory(self.rng, self._step)
        before = len(self._model.held)
        self._store.add(trajectory)
        self._model.add(trajectory)
        self.counts["evicted"] += before + 1 - len(self._model.held)

    def _save(self) -> None:
        folder = self._draw_checkpoint()
        save_store(self._store, folder, FINGERPRINT)
        self._saved[folder] = self._model.copy()

    def _kill(self) -> None:
        """A save that does not end, and the process with it; then a new process restores."""
        folder = self._draw_checkpoint()
        new_folders = [path for path in (folder, folder / SCREENSHOTS) if not path.exists()]
        disk = FailingDisk(self.rng.randrange(30), self.rng, new_folders)
        before, after = self._saved.get(folder), self._model.copy()
        expected = [before, after]
        with mock.patch.object(files, "os", disk), mock.patch.object(persistence, "_WRITERS", 1):
            try:
                save_store(self._store, folder, FINGERPRINT)
                self.counts["kill_came_late"] += 1
                expected = [after]
            except Killed:
                pass
        disk.lose_power(folder)
        self.counts["linked"] += sum(path.stat().st_nlink > 1 for path in folder.rglob("screenshots/*"))
        restored = self._load(folder)
        if restored is None:
            assert None in expected, "a kill lost a whole save"
        else:
            candidates = [model for model in expected if model is not None and model.is_like(restored)]
            assert candidates, "a kill left a store that nobody saved"
            self._saved[folder] = candidates[-1]
        self._restart()

    def _restore(self) -> None:
        self._restart()

    def _restart(self) -> None:
        """A new process: it takes up a saved store, or begins empty."""
        self._store = SuccessStore(self._per_task)
        self._model = Model(self._per_task)
        if self._saved:
            folder = self.rng.choice(sorted(self._saved))
            load_store(folder, FINGERPRINT, into=self._store)
            self._model = self._saved[folder].copy()

    def _load(self, folder: Path) -> SuccessStore | None:
        if not (folder / MANIFEST).exists():
            return None
        try:
            return load_store(folder, FINGERPRINT)
        except ReplayError as error:
            raise AssertionError(f"torn: {error}") from error

    def _draw_checkpoint(self) -> Path:
        return self._folder / f"global_step_{self.rng.randrange(3)}" / "replay"

    def _check(self) -> None:
        store = self._store
        records = sum(len(record.record) for _, record in store.records())
        assert store.num_bytes == records + self._model.screenshot_bytes, "bytes miscounted"
        assert self._model.is_like(store), "not the trajectories or not the order specified"
        for task in TASKS:
            of_task = store.of_task(task)
            assert all(trajectory.task_id == task for trajectory in of_task), "another task's trajectory"
            assert len(of_task) <= self._per_task, "too many of a task"


def draw_trajectory(rng: random.Random, step: int) -> StoredTrajectory:
    """A few tokens; screenshots of few kinds, so that trajectories share them."""
    tokens = rng.randint(1, 40)
    kinds = [rng.randrange(12) for _ in range(rng.randrange(5))]
    return StoredTrajectory(
        task_id=rng.choice(TASKS),
        step=step,
        success=rng.random(),
        reward=rng.random(),
        prompt_ids=[rng.randrange(150_000) for _ in range(tokens)],
        response_ids=[rng.randrange(150_000) for _ in range(tokens)],
        response_mask=[rng.randrange(2) for _ in range(tokens)],
        rollout_log_probs=None if rng.random() < 0.2 else [-rng.random() for _ in range(tokens)],
        screenshots=[b"\x89PNG" + bytes([kind]) * (kind * 150) for kind in kinds],
        num_turns=len(kinds),
        extra_fields={"uid": f"{step}", "min_global_steps": step},
    )


def live(seeds: range, scratch: Path, operations: int = 25) -> Counter[str]:
    """Run the lives of these seeds; what happened in them."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts += Life(seed, scratch).run(operations)
    return counts


# --- Real kills -----------------------------------------------------------------------------------------------------


def save_for_ever(folder: Path) -> None:
    """What the killed process does: grow a store and save it, alternately into two checkpoints; tell each save."""
    rng, step = random.Random(0), 0
    store = SuccessStore(8)
    while True:
        step += 1
        store.add(draw_trajectory(rng, step))
        save_store(store, folder / f"checkpoint_{step % 2}", FINGERPRINT)
        print(step, flush=True)


def kill_while_saving(folder: Path, kills: int, rng: random.Random) -> Counter[str]:
    """Start that process, SIGKILL it at a random moment, and read what it left; `kills` times."""
    counts: Counter[str] = Counter()
    for _ in range(kills):
        for checkpoint in folder.glob("checkpoint_*"):
            shutil.rmtree(checkpoint)
        with _saving_process(folder) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.random() * 0.3)
            process.send_signal(signal.SIGKILL)
            told = [int(line) for line in process.stdout.read().split()] or [1]
        steps = {}
        for checkpoint in (0, 1):
            place = folder / f"checkpoint_{checkpoint}"
            if (place / MANIFEST).exists():
                steps[checkpoint] = max(trajectory.step for trajectory in load_store(place, FINGERPRINT).trajectories())
        assert max(steps.values()) >= max(told), f"a save that was told is lost: {steps} after {max(told)}"
        counts["kills"] += 1
        counts["saves_before_kills"] += max(told)
        counts["interrupted"] += any(folder.rglob(f"{files.PART_PREFIX}*"))
    return counts


@contextmanager
def _saving_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--save-for-ever", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def main() -> None:
    parser = Arguments(__doc__, "few sequences and kills")
    parser.add_size("--sequences", 10_000, 200, "random lives")
    parser.add_size("--kills", 40, 3, "real kills")
    parser.add_argument("--seed", type=int, default=0, help="of the first sequence")
    parser.add_argument("--save-for-ever", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse()
    if arguments.save_for_ever:
        save_for_ever(arguments.save_for_ever)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as scratch:
        seeds = range(arguments.seed, arguments.seed + arguments.sequences)
        figures: dict[str, Any] = {"sequences": arguments.sequences, **live(seeds, Path(scratch))}
        figures["sequences_s"] = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as scratch:
        figures |= kill_while_saving(Path(scratch), arguments.kills, random.Random(arguments.seed))
    figures["violations"] = 0  # one would have ended the run above
    report(figures, arguments.json)


if __name__ == "__main__":
    main()
