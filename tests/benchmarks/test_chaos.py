"""`benchmarks/chaos.py` tells a false reward from a true one and finds what is left; in small it runs as it is."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from support import ROOT

pytest.importorskip("desktop_env")

import chaos  # noqa: E402
import chaos_desktop  # noqa: E402
import chaos_training  # noqa: E402

from arpo_verl.tasks.expert import expert_task_ids  # noqa: E402

pytestmark = pytest.mark.study
NO_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="the truth is read through /proc as root")


def played(task_id="dialog-confirm-no", is_lazy=False, reward=1.0, notes=(), **more):
    plan = chaos.Plan("e", task_id, is_lazy)
    return chaos.Played(plan, reward=reward, success=reward, notes=list(notes), **more)


def noted(before, after, score=1.0):
    return {"before": before, "after": after, "score": score}


@pytest.mark.parametrize(
    ("episode", "is_false"),
    [
        (played(notes=[noted(True, True)]), False),
        (played(notes=[noted(False, False)]), True),
        (played(reward=0.0, notes=[noted(True, True, 0.0)]), True),
        (played(reward=0.0, notes=[noted(False, True, 0.0)]), False),
        (played(notes=[noted(False, False), {"before": True, "error": "EvaluatorError"}]), True),
        (played(notes=[noted(None, None)]), True),
        (played(reward=0.0), True),
        (played("infeasible-fax-note"), False),
        (played("infeasible-fax-note", is_lazy=True), True),
        (played(reward=None, error="DesktopLostError: gone"), False),
        (played(reward=0.5, notes=[noted(True, True, 0.5)]), True),
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


def test_kills_are_the_same_for_a_seed_and_each_mode_has_its_share_of_every_kind():
    kills = chaos_training.draw_kills(3, "sync", 10)
    assert kills == chaos_training.draw_kills(3, "sync", 12)[:10] != chaos_training.draw_kills(3, "colocate_async", 10)
    assert Counter(kill.kind for kill in kills) == dict.fromkeys(chaos_training.KINDS, 2)
    assert sum(kill.steps is None for kill in kills) == 2
    early = {kill.kind for seed in range(20) for kill in chaos_training.draw_kills(seed, "sync", 10) if not kill.steps}
    assert early == set(chaos_training.KINDS), "Ray's head too: a run that lost it before its first step starts again"


def test_a_row_that_was_trained_on_with_another_reward_than_its_episode_is_found(tmp_path):
    folder = tmp_path / "trajectories" / "step_000002"
    folder.mkdir(parents=True)
    rows = [{"session": n, "reward": 1.0, "replay": None} for n in range(3)] + [
        {"session": 3, "reward": 1.0, "replay": {"step": 1}}
    ]
    groups = folder / "groups.jsonl"
    of_killed = json.dumps({"uid": "k", "rows": [{"session": 0, "reward": 9.0, "replay": None}]}) + "\n"
    others = [json.dumps({"uid": f"o{n}", "rows": []}) + "\n" for n in range(chaos_training.GROUPS - 1)]
    groups.write_text("".join([of_killed, *others, json.dumps({"uid": "u", "rows": rows}) + "\n"]))
    now = groups.stat().st_mtime
    recorded = {
        "u_0": [(now - 2, 0.0), (now - 1, 1.0), (now + 1, 0.0)],  # a killed start's, the step's own, a later start's
        "u_1": [(now - 1, 0.0)],
        "u_3": [(now - 1, 0.0)],
        "k_0": [(now - 1, 0.0)],
    }  # session 2 was not recorded
    (found,) = chaos_training.wrongly_trained(tmp_path, 2, recorded)
    assert found == "step 2: u_1 was trained on with 1.0, recorded with 0.0"


def test_figures_of_both_parts_add_up():
    kill = {"kind": "worker", "before_first_episode": True, "over_after_s": 7.0, "steps_repeated": 3, "sentence": "it"}
    run = {"mode": "sync", "kills": [kill], "steps": chaos_training.STEPS, "groups_ahead": 1, "hangs": 1}
    run |= {"episodes": 60, "lost": 2, "false_rewards": 1, "leaks": 3, "scored_twice": 0}
    failed = {**run, "kills": [{"kind": "pool"}], "failed": "why"}
    unbroken = {**run, "hangs": 0, "episodes": 0, "lost": 0, "false_rewards": 0, "leaks": 0}
    training = chaos_training.summarize({"runs": [run, failed], "unbroken": {"sync": unbroken}})
    assert (training["kills"], training["unfinished_runs"], training["groups_ahead"]["sync"]) == (1, 1, 1)
    desktops = {"episodes": 80, "lost_sessions_share": 0.05, "false_rewards": 0, "leaks": 1}
    totals = chaos.totals({"desktops": desktops, "training": training})
    figures = {"hangs": 2, "false_rewards": 2, "leaks": 7, "lost_sessions_share": 0.04}
    assert totals == {**figures, "steps_repeated": {**dict.fromkeys(chaos_training.KINDS, []), "worker": [3]}}


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
    assert (figures["hangs"], figures["false_rewards"], figures["leaks"]) == (0, 0, 0), figures
    assert sum(kind["injected"] for kind in figures["desktops"]["faults"].values()) > 15
    assert figures["lost_sessions_share"] == figures["desktops"]["outage"]["lost"] == 0
    (run,) = figures["training"]["runs"]
    assert len(run["kills"]) == 2 and (run["steps"], run["groups_ahead"]) == (chaos_training.STEPS, 0)
