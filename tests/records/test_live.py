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
    shutil.rmtree(folder)
    (written.live(4, turns=0) / "00.png").unlink()
    (begun,) = live_document(run)["running"]
    assert (begun["num_turns"], begun["last_reply"], begun["screenshot"]) == (0, "", None)


def test_a_finished_episode_one_of_a_killed_trainer_and_one_without_a_whole_file_do_not_run(written, run):
    folder = written.live(4)
    assert len(run.running()) == 1 and run.is_live()
    shutil.rmtree(folder)
    written.episode(4, uid="u9")
    (written.live(4, ".torn") / "live.json").write_text('{"task_id": "a')
    (written.live(4, ".odd") / "live.json").write_text('{"task_id": "a", "turns": {"no": "list"}}')
    long_ago = time.time() - RUNNING_S - 10
    os.utime(written.live(4, ".killed") / "live.json", (long_ago, long_ago))
    assert run.running() == [] and not run.is_live()


def test_an_episode_whose_file_is_just_overwritten_is_looked_at_again(written, run, monkeypatch):
    file = written.live(4) / "live.json"
    whole = file.read_text()
    file.write_text(whole[:50])
    own = SimpleNamespace(time=time.time, sleep=lambda _: file.write_text(whole))
    monkeypatch.setattr(live, "time", own)
    (running,) = run.running()
    assert running.content["task_id"] == "press-ok"


def test_a_pool_is_live_while_it_writes_its_state(written, run):
    assert run.pool() is None
    written.pool(waiting=3)
    assert run.pool()["waiting"] == 3 and run.is_live()
    written.pool(time.time() - POOL_FRESH_S - 1)
    assert run.pool() is None and not run.is_live()
