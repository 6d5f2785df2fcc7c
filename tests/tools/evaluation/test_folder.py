"""An evaluation's folder: what counts is what is recorded."""

import shutil
import subprocess
import sys

import pytest
from support.evaluation_run import record

from arpo_verl.errors import ConfigError
from arpo_verl.tools.evaluation.folder import EvaluationFolder
from arpo_verl.tools.evaluation.results import FailedTrial, Trial
from arpo_verl.types import StopReason, Task

TASKS = [Task("a", "Do a.", {"id": "a"}, "os"), Task("b", "Do b.", {"id": "b"})]
SETTINGS = {"max_steps": [5, 15], "policy": {"model": "m"}, "temperature": 0.6}


@pytest.fixture
def folder(tmp_path):
    with EvaluationFolder.held(tmp_path / "e", SETTINGS, TASKS) as folder:
        yield folder


def test_an_episode_tells_every_budget_that_it_ended_within(folder):
    record(folder, Trial("a", 0, 15))
    results = folder.results(Trial("a", 0, 15))
    assert [(r.budget, r.success, r.turns, r.domain) for r in results] == [(5, 1.0, 3, "os"), (15, 1.0, 3, "os")]
    assert folder.read().results == results and len({*folder.read().digests.values()}) == len(TASKS)


def test_a_longer_one_tells_a_budget_by_its_verdict_on_the_way_alone(folder):
    record(folder, Trial("a", 0, 15), num_turns=9)
    record(folder, Trial("a", 1, 15), num_turns=9, verdicts=[{"turns": 5, "success": 0.0}])
    assert [r.budget for r in folder.results(Trial("a", 0, 15))] == [15]
    midway, end = folder.results(Trial("a", 1, 15))
    assert (midway.budget, midway.success, midway.turns, midway.stop_reason) == (5, 0.0, 5, StopReason.STEP_LIMIT)
    assert (end.budget, end.success) == (15, 1.0)
    record(folder, Trial("a", 0, 5), success=0.5)
    assert [(r.budget, r.run, r.success) for r in folder.read().results] == [
        (5, 0, 0.5),
        (5, 1, 0.0),
        (15, 0, 1.0),
        (15, 1, 1.0),
    ]


@pytest.mark.parametrize(
    "content",
    [
        *({"success": 2}, {"success": "nan"}, {"stop_reason": "tired"}, {"verdicts": [1]}),
        *({"num_turns": None}, {"num_turns": 10**400}, {"num_turns": -1}),
        *({"session": 1}, {"task_id": "b"}, {"task_id": ["a"]}, {"uid": "0123456789ab-15"}, {"uid": 5}),
        '{"task_id": "a", "uid"',
    ],
)
def test_a_broken_record_is_none(folder, content):
    place = record(folder, Trial("a", 0, 15), **({} if isinstance(content, str) else content))
    if isinstance(content, str):
        (place / "episode.json").write_text(content)
    assert folder.results(Trial("a", 0, 15)) is None
    assert folder.read().results == ()


def test_a_copy_of_a_record_is_not_counted_twice(folder):
    place = record(folder, Trial("a", 0, 15))
    shutil.copytree(place, place.with_name(f"{place.name}-copy"))
    assert folder.read().results == folder.results(Trial("a", 0, 15))


def test_a_fault_counts_until_its_trial_has_a_result(folder):
    faults = [FailedTrial(task_id, 0, 15, "DesktopLostError", "gone") for task_id in ("a", "b", "a")]
    for fault in faults:
        folder.add_fault(fault)
    assert folder.read().faults == tuple(faults[:2])
    record(folder, Trial("a", 0, 15))
    assert folder.read().faults == (faults[1],)


def test_two_runs_do_not_write_to_one_folder(folder):
    path = folder.path
    with pytest.raises(ConfigError, match="another evaluation uses"), EvaluationFolder.held(path, SETTINGS, TASKS):
        pass
    EvaluationFolder(path)  # readers come and go


def test_other_settings_and_other_tasks_are_refused_by_name(tmp_path):
    path = tmp_path / "e"
    with EvaluationFolder.held(path, SETTINGS, TASKS) as folder:
        hidden = folder.trajectories / "step_000000" / ".running"
        hidden.mkdir(parents=True)
    other = {**SETTINGS, "policy": {"model": "n"}}
    with pytest.raises(ConfigError, match="policy.model was 'm', now 'n'"), EvaluationFolder.held(path, other, TASKS):
        pass
    edited = [TASKS[0], Task("b", "Do b.", {"id": "b", "edited": True})]
    with pytest.raises(ConfigError, match="1 tasks are new, gone or changed, such as b"):
        with EvaluationFolder.held(path, SETTINGS, edited):
            pass
    assert hidden.exists()
    with EvaluationFolder.held(path, SETTINGS, TASKS):
        assert not hidden.exists()


def test_the_lock_goes_with_its_process(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from arpo_verl.tools.evaluation.folder import EvaluationFolder\n"
        f"with EvaluationFolder.held(Path({str(tmp_path / 'e')!r}), {SETTINGS!r}, []): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    with EvaluationFolder.held(tmp_path / "e", SETTINGS, []) as folder:
        assert folder.read().results == ()


HERE = '{"settings": {"max_steps": [5]}, "tasks": [1]}'


@pytest.mark.parametrize("content", [None, '{"settings"', "{}", "[]", HERE, HERE.replace("[5]", '"many"'), "[" * 99999])
def test_what_is_no_evaluation_is_refused_and_not_gone_on_with(tmp_path, content):
    if content is not None:
        (tmp_path / "evaluation.json").write_text(content)
        with pytest.raises(ConfigError, match="must be an evaluation's folder"):
            with EvaluationFolder.held(tmp_path, SETTINGS, TASKS):
                pass
        assert (tmp_path / "evaluation.json").read_text() == content
    with pytest.raises(ConfigError, match="must be an evaluation's folder"):
        EvaluationFolder(tmp_path)
