"""An evaluation's folder: its episodes as a run records them, beside what they were played with.

    evaluation.json                    settings and tasks, written before the first episode
    faults.jsonl                       a line a trial that infrastructure failed
    trajectories/step_000000/...       the episodes, as docs/trajectories.md has them; nothing else says what is done

`arpo-verl view` opens it as any run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from arpo_verl.errors import ConfigError
from arpo_verl.evaluation.results import Evaluated, FailedTrial, Result, Trial
from arpo_verl.files import write_whole
from arpo_verl.records.documents import folder_of
from arpo_verl.records.episode_folder import remove_unfinished
from arpo_verl.records.json_files import append_objects, as_number, read_json_object, read_objects
from arpo_verl.records.layout import EVALUATION_FILE, FAULTS_FILE, HIDDEN, TRAJECTORIES, read_episode, step_folder
from arpo_verl.types import EpisodeId, StopReason, Task

_LOCK = ".in-use"
# What reading a record raises that is torn, as after a loss of power, or none of ours: it counts as not there.
_BROKEN = (OSError, ValueError, KeyError, TypeError)
_UID = re.compile(r"[0-9a-f]{12}-([0-9]{1,9})")


class EvaluationFolder:
    """Both ends of an evaluation's folder; reading needs no lock.

    Args:
        path: of the folder, with `evaluation.json` in it.

    Raises:
        ConfigError: there is none, or a torn one.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            content = read_json_object(path / EVALUATION_FILE)
            self.settings: Mapping[str, Any] = content["settings"]
            self._domains = {str(task["task_id"]): str(task["domain"]) for task in content["tasks"]}
            self._budgets = sorted(int(budget) for budget in self.settings["max_steps"])
        except FileNotFoundError as error:
            raise ConfigError(f"{path} must be an evaluation's folder, got one without an {EVALUATION_FILE}") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            expected = f"an evaluation's folder, with its {EVALUATION_FILE}"
            raise ConfigError(f"{path} must be {expected}: {type(error).__name__}: {error}") from error

    @classmethod
    @contextlib.contextmanager
    def held(cls, path: Path, settings: Mapping[str, Any], tasks: Sequence[Task]) -> Iterator[EvaluationFolder]:
        """Make the folder, or go on in it, and keep other writers out for the length of the block.

        Args:
            settings: all that a result depends on, as JSON; `max_steps` has the budgets.
            tasks: all that may be played.

        Raises:
            ConfigError: another process writes there, or what is there was made with something else.
            OSError: the disk refuses.
        """
        path.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            content = json.loads(json.dumps({"settings": settings, "tasks": [_task_facts(task) for task in tasks]}))
            file = path / EVALUATION_FILE
            if not file.exists():
                write_whole(file, json.dumps(content, indent=1).encode() + b"\n")
            folder = cls(path)
            _check_same(path, read_json_object(file), content)
            remove_unfinished(path / TRAJECTORIES)
            yield folder

    @property
    def trajectories(self) -> Path:
        return self.path / TRAJECTORIES

    def results(self, trial: Trial) -> tuple[Result, ...] | None:
        """What a trial came to within each budget that its episode covers; None without a whole record of it."""
        found = self._read_episode(_place(trial))
        return None if found is None else found[1]

    def add_fault(self, fault: FailedTrial) -> None:
        """Note that infrastructure failed a trial.

        Raises:
            OSError: the disk refuses.
        """
        append_objects(self.path / FAULTS_FILE, [dataclasses.asdict(fault)])

    def read(self) -> Evaluated:
        """All results and faults up to now."""
        found: dict[tuple[str, int, int], Result] = {}
        # By descending budgets: an episode of a budget's own replaces what a longer one said of it.
        for _, results in sorted(self._episodes(), key=lambda one: -one[0].max_steps):
            found |= {(result.task_id, result.budget, result.run): result for result in results}
        place = {task_id: number for number, task_id in enumerate(self._domains)}
        ordered = sorted(found.values(), key=lambda result: (place[result.task_id], result.budget, result.run))
        faults = {(f.task_id, f.max_steps, f.run): f for f in map(_fault, read_objects(self.path / FAULTS_FILE)) if f}
        unsettled = tuple(fault for key, fault in faults.items() if key not in found and fault.task_id in place)
        return Evaluated(tuple(ordered), unsettled, self.settings, dict(self._domains))

    def _episodes(self) -> Iterator[tuple[Trial, tuple[Result, ...]]]:
        """Every recorded episode's trial, and what it came to."""
        step = Path(step_folder(0))
        names = os.listdir(self.trajectories / step) if (self.trajectories / step).is_dir() else ()
        for name in sorted(names):
            if not name.startswith(HIDDEN) and (found := self._read_episode(step / name)) is not None:
                yield found

    def _read_episode(self, place: Path) -> tuple[Trial, tuple[Result, ...]] | None:
        """A trial and what it came to; None where its record is broken, or lies where another's would."""
        with contextlib.suppress(*_BROKEN):
            content = read_episode(self.trajectories / place)
            uid = _UID.fullmatch(content["uid"])
            if uid and content["task_id"] in self._domains:
                trial = Trial(content["task_id"], int(content["session"]), int(uid[1]))
                if content["uid"] == uid_of(trial) and _place(trial) == place:
                    return trial, self._results(trial, content, str(place))
        return None

    def _results(self, trial: Trial, content: Mapping[str, Any], episode_id: str) -> tuple[Result, ...]:
        turns, stop_reason = int(content["num_turns"]), StopReason(content["stop_reason"])
        success = _score(content["success"])
        if not 0 <= turns <= trial.max_steps:
            raise ValueError(f"an episode must have at most {trial.max_steps} turns, got {turns}")
        midway = {int(one["turns"]): _score(one["success"]) for one in content.get("verdicts", ())}
        results = []
        for budget in self._budgets:
            # An episode that ended within a smaller budget would have ended so there too.
            if budget == trial.max_steps or (budget < trial.max_steps and turns <= budget):
                outcome = (success, turns, stop_reason)
            elif budget < trial.max_steps and budget in midway:
                outcome = (midway[budget], budget, StopReason.STEP_LIMIT)
            else:
                continue
            domain = self._domains.get(trial.task_id, "")
            results.append(Result(trial.task_id, domain, trial.run, budget, *outcome, episode_id))
        return tuple(results)


def uid_of(trial: Trial) -> str:
    """The group that a trial's episode is recorded under: a task's runs at one budget. Its number in it is `run`."""
    return f"{sha256(trial.task_id.encode()).hexdigest()[:12]}-{trial.max_steps}"


def _place(trial: Trial) -> Path:
    """Where its episode is recorded, below the trajectories."""
    return folder_of(EpisodeId(0, uid_of(trial), trial.run), trial.task_id)


def _fault(line: Mapping[str, Any]) -> FailedTrial | None:
    try:
        trial = str(line["task_id"]), int(line["run"]), int(line["max_steps"])
        return FailedTrial(*trial, str(line["error"]), str(line["message"]))
    except (ValueError, KeyError, TypeError):
        return None


def _score(value: object) -> float:
    score = as_number(value)
    if score is None or not 0 <= score <= 1:
        raise ValueError(f"a score must be in [0, 1], got {value!r}")
    return float(score)


def _task_facts(task: Task) -> dict[str, str]:
    content = json.dumps(task.spec, sort_keys=True, default=str)
    return {"task_id": task.task_id, "domain": task.domain, "sha256": sha256(content.encode()).hexdigest()}


def _check_same(path: Path, earlier: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with anything else.

    Raises:
        ConfigError: names what differs.
    """
    flat = [dict(_flat("", part["settings"])) for part in (earlier, now)]
    names = sorted(name for name in flat[0].keys() | flat[1].keys() if flat[0].get(name) != flat[1].get(name))
    differing = [f"{name} was {flat[0].get(name)!r}, now {flat[1].get(name)!r}" for name in names]
    tasks = [{task["task_id"]: task for task in part["tasks"]} for part in (earlier, now)]
    changed = [i for i in tasks[0].keys() | tasks[1].keys() if tasks[0].get(i) != tasks[1].get(i)]
    if changed:
        differing.append(f"{len(changed)} tasks are others, or have another content, such as {sorted(changed)[0]}")
    if differing:
        raise ConfigError(
            f"{path} holds an evaluation that was made with other settings, and results of both would be one table: "
            f"{'; '.join(differing)}. Go on with its own settings, or give another --out"
        )


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep the folder for this process; the kernel lets go of it however that ends."""
    descriptor = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{path} is in use by another evaluation; wait for it, or give another --out") from error
        yield
    finally:
        os.close(descriptor)
