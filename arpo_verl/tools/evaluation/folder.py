"""An evaluation's folder has its episodes, recorded as in a run, and its settings.

    evaluation.json                    settings and tasks, written before the first episode
    faults.jsonl                       a line for each trial lost to infrastructure failures
    trajectories/step_000000/...       the episodes, see docs/trajectories.md; only these show which trials are done

`arpo-verl view` opens it like a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec

from arpo_verl.errors import ConfigError
from arpo_verl.lib.file_lock import FileLock, LockedError
from arpo_verl.lib.files import write_whole
from arpo_verl.records.documents import folder_of
from arpo_verl.records.episode_folder import remove_unfinished
from arpo_verl.records.json_files import Count, append_objects, read_json, read_lines
from arpo_verl.records.layout import EPISODE_FILE, EVALUATION_FILE, FAULTS_FILE, HIDDEN, TRAJECTORIES, step_folder
from arpo_verl.tools.evaluation.results import Evaluated, FailedTrial, Result, Trial
from arpo_verl.types import EpisodeId, StopReason, Task

_LOCK = ".in-use"
_UID = re.compile(r"[0-9a-f]{12}-([0-9]{1,9})")


_Score = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Settings(msgspec.Struct):
    max_steps: list[Count]


class _Task(msgspec.Struct):
    task_id: str
    domain: str
    sha256: str = ""


class _EvaluationFile(msgspec.Struct):
    settings: _Settings
    tasks: list[_Task]


class _Verdict(msgspec.Struct):
    turns: Count
    success: _Score


class _Episode(msgspec.Struct):
    """What results are made from in `episode.json`."""

    task_id: str
    uid: str
    session: Count
    num_turns: Count
    stop_reason: StopReason
    success: _Score
    verdicts: list[_Verdict] = []


class EvaluationFolder:
    """Reads and writes an evaluation's folder; reading needs no lock.

    Args:
        path: the folder, with `evaluation.json` in it.

    Raises:
        ConfigError: `evaluation.json` is missing or incomplete.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self.content = read_json(path / EVALUATION_FILE, dict[str, Any])
            file = msgspec.convert(self.content, _EvaluationFile)
        except FileNotFoundError as error:
            raise ConfigError(f"{path} must be an evaluation's folder, got one without an {EVALUATION_FILE}") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} must be an evaluation's folder, with its {EVALUATION_FILE}: {error}") from error
        self.settings: Mapping[str, Any] = self.content["settings"]
        self._domains = {task.task_id: task.domain for task in file.tasks}
        self._digests = {task.task_id: task.sha256 for task in file.tasks}
        self._budgets = sorted(file.settings.max_steps)

    @classmethod
    @contextlib.contextmanager
    def held(cls, path: Path, settings: Mapping[str, Any], tasks: Sequence[Task]) -> Iterator[EvaluationFolder]:
        """Make the folder, or continue it, and keep other writers out until the end of the block.

        Args:
            settings: all that a result depends on, as JSON; `max_steps` has the budgets.
            tasks: all tasks that may be played.

        Raises:
            ConfigError: another process writes there, or the folder was made with other settings or tasks.
            OSError: the folder cannot be written.
        """
        path.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(path / _LOCK)
        except LockedError as error:
            used = f"another evaluation uses {path} ({error.holder})"
            raise ConfigError(f"{used}; wait for it, or choose another --out") from error
        with contextlib.closing(lock):
            content = json.loads(json.dumps({"settings": settings, "tasks": [_task_facts(task) for task in tasks]}))
            file = path / EVALUATION_FILE
            if not file.exists():
                write_whole(file, json.dumps(content, indent=1).encode() + b"\n")
            folder = cls(path)
            _check_same(path, folder.content, content)
            remove_unfinished(path / TRAJECTORIES)
            yield folder

    @property
    def trajectories(self) -> Path:
        return self.path / TRAJECTORIES

    def results(self, trial: Trial) -> tuple[Result, ...] | None:
        """Return a trial's results within each budget that its episode covers; None without a complete record."""
        found = self._read_episode(_place(trial))
        return None if found is None else found[1]

    def add_fault(self, fault: FailedTrial) -> None:
        """Note that a trial was lost to infrastructure failures.

        Raises:
            OSError: the file cannot be written.
        """
        append_objects(self.path / FAULTS_FILE, [dataclasses.asdict(fault)])

    def read(self) -> Evaluated:
        """Return all results and faults so far."""
        found: dict[tuple[str, int, int], Result] = {}
        # By descending budgets, so that a budget's own episode replaces the result of a longer one.
        for _, results in sorted(self._episodes(), key=lambda one: -one[0].max_steps):
            found |= {(result.task_id, result.budget, result.run): result for result in results}
        place = {task_id: number for number, task_id in enumerate(self._domains)}
        ordered = sorted(found.values(), key=lambda result: (place[result.task_id], result.budget, result.run))
        lines = read_lines(self.path / FAULTS_FILE, FailedTrial)
        faults = {(fault.task_id, fault.max_steps, fault.run): fault for fault in lines}
        unsettled = tuple(fault for key, fault in faults.items() if key not in found and fault.task_id in place)
        return Evaluated(tuple(ordered), unsettled, self.settings, self._domains, self._digests)

    def _episodes(self) -> Iterator[tuple[Trial, tuple[Result, ...]]]:
        """Yield every recorded episode's trial, and its results."""
        step = Path(step_folder(0))
        names = os.listdir(self.trajectories / step) if (self.trajectories / step).is_dir() else ()
        for name in sorted(names):
            if not name.startswith(HIDDEN) and (found := self._read_episode(step / name)) is not None:
                yield found

    def _read_episode(self, place: Path) -> tuple[Trial, tuple[Result, ...]] | None:
        """Return a trial and its results; None if its record is broken, or in another record's place."""
        # A record may be incomplete, as after a power failure, or a foreign one: it counts as missing.
        with contextlib.suppress(OSError, ValueError):
            content = read_json(self.trajectories / place / EPISODE_FILE, _Episode)
            uid = _UID.fullmatch(content.uid)
            if uid and content.task_id in self._domains:
                trial = Trial(content.task_id, content.session, int(uid[1]))
                if content.uid == uid_of(trial) and _place(trial) == place:
                    return trial, self._results(trial, content, str(place))
        return None

    def _results(self, trial: Trial, content: _Episode, episode_id: str) -> tuple[Result, ...]:
        if content.num_turns > trial.max_steps:
            raise ValueError(f"an episode must have at most {trial.max_steps} turns, got {content.num_turns}")
        midway = {verdict.turns: verdict.success for verdict in content.verdicts}
        results = []
        for budget in self._budgets:
            # An episode that ended within a smaller budget would have ended in the same way there.
            if budget == trial.max_steps or (budget < trial.max_steps and content.num_turns <= budget):
                outcome = (content.success, content.num_turns, content.stop_reason)
            elif budget < trial.max_steps and budget in midway:
                outcome = (midway[budget], budget, StopReason.STEP_LIMIT)
            else:
                continue
            domain = self._domains.get(trial.task_id, "")
            results.append(Result(trial.task_id, domain, trial.run, budget, *outcome, episode_id))
        return tuple(results)


def uid_of(trial: Trial) -> str:
    """Return the group under which a trial is recorded: a task's runs at one budget; its number in it is `run`."""
    return f"{sha256(trial.task_id.encode()).hexdigest()[:12]}-{trial.max_steps}"


def _place(trial: Trial) -> Path:
    """Return the folder of the trial's episode, below the trajectories."""
    return folder_of(EpisodeId(0, uid_of(trial), trial.run), trial.task_id)


def _task_facts(task: Task) -> dict[str, str]:
    content = json.dumps(task.spec, sort_keys=True, default=str)
    return {"task_id": task.task_id, "domain": task.domain, "sha256": sha256(content.encode()).hexdigest()}


def _check_same(path: Path, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that settings and tasks are the same as before.

    Raises:
        ConfigError: the message names what differs.
    """
    flat = [dict(_flat("", part["settings"])) for part in (earlier, now)]
    names = sorted(name for name in flat[0].keys() | flat[1].keys() if flat[0].get(name) != flat[1].get(name))
    differing = [f"{name} was {flat[0].get(name)!r}, now {flat[1].get(name)!r}" for name in names]
    tasks = [{task["task_id"]: task for task in part["tasks"]} for part in (earlier, now)]
    changed = [i for i in tasks[0].keys() | tasks[1].keys() if tasks[0].get(i) != tasks[1].get(i)]
    if changed:
        differing.append(f"{len(changed)} tasks are new, gone or changed, such as {sorted(changed)[0]}")
    if differing:
        raise ConfigError(
            f"{path} has an evaluation with other settings, which would be mixed with yours: "
            f"{'; '.join(differing)}. Use its settings to continue it, or choose another --out"
        )


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value
