"""What is being played just now."""

import os
import shutil
import time
from types import SimpleNamespace

from arpo_verl.records import live
from arpo_verl.records.live import POOL_FRESH_S, RUNNING_S
from arpo_verl.tools.viewer.documents import live_document


def test_an_episode_being_played_shows_its_newest_screenshot_and_last_reply(written, run):
    folder = written.live(4, ".press-ok__u9_0.x", turns=2)
    (running,) = live_document(run)["running"]
    assert running["id"] == f"step_000004/{folder.name}"
    assert running["screenshot"] == f"shots/step_000004/{folder.name}/02.png"
    assert (running["task_id"], running["step"], running["num_turns"]) == ("press-ok", 4, 2)
    assert (running["last_reply"], running["last_actions"]) == ("Thought: go on.", [{"action": "Wait"}])


def test_an_episode_that_only_begins_has_nothing_to_show_yet(written, run):
    folder = written.live(4, turns=0)
    (folder / "00.png").unlink()
    (running,) = live_document(run)["running"]
    assert (running["num_turns"], running["last_reply"], running["screenshot"]) == (0, "", None)


def test_a_finished_episode_runs_no_more(written, run):
    folder = written.live(4)
    assert len(run.running()) == 1
    shutil.rmtree(folder)
    written.episode(4, uid="u9")
    assert run.running() == []


def test_what_a_killed_trainer_left_does_not_run(written, run):
    folder = written.live(4)
    long_ago = time.time() - RUNNING_S - 10
    os.utime(folder / "live.json", (long_ago, long_ago))
    assert run.running() == []
    assert not run.is_live()


def test_an_episode_whose_file_is_just_overwritten_is_looked_at_again(written, run, monkeypatch):
    file = written.live(4) / "live.json"
    whole = file.read_text()
    file.write_text(whole[:50])
    own = SimpleNamespace(time=time.time, sleep=lambda _: file.write_text(whole))
    monkeypatch.setattr(live, "time", own)
    (running,) = run.running()
    assert running.content["task_id"] == "press-ok"


def test_a_torn_or_odd_live_file_is_left_out(written, run):
    (written.live(4, ".torn") / "live.json").write_text('{"task_id": "a')
    (written.live(4, ".odd") / "live.json").write_text('{"task_id": "a", "turns": {"no": "list"}}')
    assert run.running() == []


def test_a_pool_that_writes_its_state_is_a_live_run(written, run):
    assert run.pool() is None
    written.pool(waiting=3)
    assert run.pool()["waiting"] == 3
    assert run.is_live()


def test_a_pool_that_stopped_writing_has_ended(written, run):
    written.pool(time.time() - POOL_FRESH_S - 1)
    assert run.pool() is None
    assert not run.is_live()
