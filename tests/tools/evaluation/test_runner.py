"""Evaluations are played once, whatever kills them, and what infrastructure failed is no score."""

import os
import subprocess
import sys

import pytest
from support import ROOT
from support.evaluation_run import DONE, HIT, RUNS, TASKS, Scripted, play

from arpo_verl.desktops.fake import FakeScript
from arpo_verl.errors import ConfigError, EndpointError
from arpo_verl.tools.evaluation.folder import EvaluationFolder
from arpo_verl.tools.evaluation.results import FailedTrial, Result, Trial
from arpo_verl.tools.evaluation.schedule import EachRun
from arpo_verl.types import StopReason, Task

MISS = "Action: click(start_box='(300,200)')"
READ = {"evaluator": {"func": "exact_match", "result": {"type": "vm_file"}, "expected": {"type": "rule"}}}


def test_every_task_is_played_so_often_and_recorded(tmp_path):
    evaluated = play(tmp_path / "e", Scripted())
    assert len(evaluated.results) == len(TASKS) * RUNS and not evaluated.faults
    assert {(r.success, r.turns, r.stop_reason, r.domain) for r in evaluated.results} == {
        (1.0, 2, StopReason.FINISHED, "os")
    }
    assert evaluated.settings["policy"] == {"model": "scripted"}
    assert len(list((tmp_path / "e" / "trajectories" / "step_000000").glob("*/00.png"))) == len(evaluated.results)


def test_every_task_is_played_once_before_one_is_played_again_at_the_largest_budget():
    scheduler = EachRun(["a", "b"], 2, [50, 15])
    assert scheduler.expected == 4
    assert scheduler.next_trials(3) == [Trial("a", 0, 50), Trial("b", 0, 50), Trial("a", 1, 50)]
    assert [scheduler.next_trials(3), scheduler.next_trials(3)] == [[Trial("b", 1, 50)], []]
    longer = Result("a", "", 0, 50, 1.0, 16, StopReason.FINISHED, "step_000000/x")  # it tells nothing of 15 turns
    for outcome in ((longer,), FailedTrial("a", 0, 50, "DesktopLostError", "gone")):
        scheduler.finished(Trial("a", 0, 50), outcome)
    assert (scheduler.expected, scheduler.next_trials(3)) == (5, [Trial("a", 0, 15)])


def test_a_killed_evaluation_goes_on_and_nothing_is_played_twice(tmp_path):
    out = tmp_path / "e"

    def start(*kill_at):
        command = [sys.executable, "-m", "support.evaluation_run", str(out), *kill_at]
        paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, timeout=300)
        return ended.returncode, len(EvaluationFolder(out).read().results)

    codes, counts = zip(*(start("5"), start("4"), start()), strict=True)
    assert codes == (-9, -9, 0)
    assert 3 <= counts[0] < counts[1] < counts[2] == len(TASKS) * RUNS
    begun = [line.split(" ", 1) for line in (out / "begun.log").read_text().splitlines()]
    assert len(begun) <= len(TASKS) * RUNS + 2 * 2, "a kill loses at most what ran, on two desktops"
    starts = list(dict.fromkeys(pid for pid, _ in begun))
    assert [pid for pid, _ in begun].count(starts[2]) == len(TASKS) * RUNS - counts[1]
    assert len(play(out, Scripted(begun=pytest.fail)).results) == len(TASKS) * RUNS


def test_a_desktop_that_fails_costs_an_attempt_and_no_score(tmp_path):
    scripts = FakeScript(fail={"step": [1]}), FakeScript(fail={"evaluate": [1]}), FakeScript()
    (result,) = play(tmp_path / "e", Scripted(), *scripts, tasks=TASKS[:1], runs=1, desktops=1).results
    assert result.success == 1.0


def test_what_always_fails_is_a_fault_and_played_again_the_next_time(tmp_path):
    begun = []
    policy = Scripted(begun=begun.append)
    evaluated = play(tmp_path / "e", policy, FakeScript(fail={"evaluate": [-1]}), tasks=TASKS[:1], runs=2)
    # In the order in which they came: of two desktops, either may be the first.
    assert sorted((f.task_id, f.run, f.error) for f in evaluated.faults) == [
        ("a", 0, "EvaluatorError"),
        ("a", 1, "EvaluatorError"),
    ]
    assert evaluated.results == () and len(begun) == 2 * 3
    evaluated = play(tmp_path / "e", policy, tasks=TASKS[:1], runs=2)
    assert len(evaluated.results) == 2 and evaluated.faults == ()


def gone(*good):
    """A server that answers some trials alone."""

    def begun(trial):
        if trial.run not in good:
            raise EndpointError("no server")

    return Scripted(begun=begun)


def test_an_engine_that_is_gone_ends_the_evaluation_and_one_in_trouble_does_not(tmp_path):
    with pytest.raises(EndpointError, match="no server"):
        play(tmp_path / "gone", gone(), runs=10, desktops=1)
    assert len(EvaluationFolder(tmp_path / "gone").read().faults) == 8
    evaluated = play(tmp_path / "trouble", gone(0, 2, 4), tasks=TASKS, runs=6, desktops=1)
    assert (len(evaluated.results), len(evaluated.faults)) == (12, 12)


def test_a_wrong_setting_ends_it_at_once(tmp_path):
    def refused(trial):
        raise ConfigError("status 401")

    with pytest.raises(ConfigError, match="401"):
        play(tmp_path / "e", Scripted(begun=refused))
    assert EvaluationFolder(tmp_path / "e").read().results == ()


def test_a_disk_that_takes_no_record_is_told(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr("arpo_verl.records.episode_folder.EpisodeFolder.finish", refuse)
    with pytest.raises(OSError, match="was not recorded"):
        play(tmp_path / "e", Scripted(), tasks=TASKS[:1], runs=1)


def test_a_smaller_budget_is_read_off_where_looking_changes_nothing_and_played_apart_elsewhere(tmp_path):
    tasks = [Task("reads", "Do.", {"id": "reads", **READ}), Task("acts", "Do.", {"id": "acts"})]
    begun = []
    policy = Scripted([HIT, MISS, MISS, DONE], begun.append)
    evaluated = play(tmp_path / "e", policy, tasks=tasks, runs=1, budgets=(2, 3, 8), desktops=1)
    assert begun == [Trial("reads", 0, 8), Trial("acts", 0, 8), Trial("acts", 0, 2), Trial("acts", 0, 3)]
    found = [(r.task_id, r.budget, r.success, r.turns, r.stop_reason.value) for r in evaluated.results]
    limit, done = "step_limit", "finished"
    assert found == [
        *(("reads", 2, 1.0, 2, limit), ("reads", 3, 1.0, 3, limit), ("reads", 8, 1.0, 4, done)),
        *(("acts", 2, 1.0, 2, limit), ("acts", 3, 1.0, 3, limit), ("acts", 8, 1.0, 4, done)),
    ]


def test_other_settings_are_refused(tmp_path):
    play(tmp_path / "e", Scripted(), tasks=TASKS[:1], runs=1)
    with pytest.raises(ConfigError, match="environment.action_pause_s was 0.05, now 2"):
        play(tmp_path / "e", Scripted(), tasks=TASKS[:1], runs=1, action_pause_s=2)
    # How many desktops there are, and how often each task is played, is no such setting.
    assert len(play(tmp_path / "e", Scripted(), tasks=TASKS[:1], runs=3, desktops=5).results) == 3
