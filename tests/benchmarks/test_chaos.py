"""`benchmarks/chaos.py` tells a false reward from a true one and finds what is left; in small it runs as it is."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support import ROOT

pytest.importorskip("desktop_env")

import chaos  # noqa: E402
import chaos_desktop  # noqa: E402

from arpo_verl.tasks.expert import expert_task_ids  # noqa: E402

pytestmark = pytest.mark.study
NO_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="the truth is read through /proc as root")


def played(task_id="dialog-confirm-no", is_lazy=False, reward=1.0, notes=(), **more):
    plan = chaos.Plan("e", task_id, is_lazy)
    return chaos.Played(plan, reward=reward, success=reward, notes=list(notes), **more)


def judged(before, after, score=1.0):
    return {"before": before, "after": after, "score": score}


@pytest.mark.parametrize(
    ("episode", "is_false"),
    [
        (played(notes=[judged(True, True)]), False),
        (played(notes=[judged(False, False)]), True),
        (played(reward=0.0, notes=[judged(True, True, 0.0)]), True),
        (played(reward=0.0, notes=[judged(False, True, 0.0)]), False),
        (played(notes=[judged(False, False), {"before": True, "error": "EvaluatorError"}]), True),
        (played(notes=[judged(None, None)]), True),
        (played(reward=0.0), True),
        (played("infeasible-fax-note"), False),
        (played("infeasible-fax-note", is_lazy=True), True),
        (played(reward=None, error="DesktopLostError: gone"), False),
        (played(reward=0.5, notes=[judged(True, True, 0.5)]), True),
    ],
)
def test_a_reward_counts_as_true_only_where_the_desktops_files_say_so(episode, is_false):
    assert episode.is_false is is_false


def test_plans_are_the_same_for_a_seed_and_every_fault_comes_as_often():
    plans = chaos.draw(3, 500, 0.2, "faulty")
    assert plans == chaos.draw(3, 500, 0.2, "faulty") != chaos.draw(4, 500, 0.2, "faulty")
    faults = [plan.fault for plan in plans if plan.fault]
    assert len(faults) == 100 and set(faults) == set(chaos_desktop.KINDS)
    assert max(map(faults.count, chaos_desktop.KINDS)) - min(map(faults.count, chaos_desktop.KINDS)) <= 1
    assert set(chaos_desktop.TRUTHS) <= set(expert_task_ids())


def test_the_truth_follows_no_link_of_the_guests(tmp_path):
    (tmp_path / "answer.txt").symlink_to("/proc/self/comm")
    (tmp_path / "note.txt").write_text("hello")
    assert not chaos_desktop.TRUTHS["dialog-confirm-no"](tmp_path)
    assert chaos_desktop.TRUTHS["editor-write-hello"](tmp_path)


def test_what_is_left_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(chaos, "CLOSED_WITHIN_S", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = chaos.belongings()
    with subprocess.Popen(["sleep", "60"]) as process, socket.create_server(("127.0.0.1", 0)):
        (tmp_path / "left").touch()
        shared = Path(f"/dev/shm/chaos-{os.getpid()}")
        shared.touch()
        try:
            left = chaos.leaks(before)
        finally:
            shared.unlink()
            process.kill()
    assert {name for name, things in left.items() if things} >= {"processes", "ports", "shm", "scratch"}
    assert any("sleep 60" in line for line in left["processes"])


@NO_ROOT
@pytest.mark.release
@pytest.mark.desktop
def test_in_small_no_reward_is_false_and_nothing_is_left(tmp_path):
    figures = tmp_path / "chaos.json"
    command = [sys.executable, "benchmarks/chaos.py", "--smoke", "--json", figures]
    subprocess.run(command, cwd=ROOT, check=True, timeout=1800)
    figures = json.loads(figures.read_text())
    assert (figures["false_rewards"], figures["leaks"]) == (0, 0), figures
    assert sum(kind["injected"] for kind in figures["faults"].values()) > 15
    assert figures["lost_sessions_share"] == figures["outage"]["lost"] == 0
