"""The bound of what a run's records take on disk."""

import json
import os

import pytest

from arpo_verl.lib import file_lock
from arpo_verl.records import budget
from arpo_verl.records.budget import BudgetKeeper, ScreenshotBudget

SCREENSHOT = b"\x89PNG" + bytes(996)


def record(folder, step, number, *, validation=False, shots=2):
    """An episode of two screenshots of 1,000 bytes; returns its folder."""
    path = folder / f"step_{step:06d}" / f"task__u{number}_0"
    path.mkdir(parents=True)
    (path / "episode.json").write_text(json.dumps({"task_id": "task", "validation": validation}))
    for shot in range(shots):
        (path / f"{shot:02d}.png").write_bytes(SCREENSHOT)
    return path


def with_screenshots(*paths):
    return [path for path in paths if list(path.glob("*.png"))]


@pytest.fixture
def looked_at(monkeypatch):
    """The folders of episodes that were listed."""
    seen, measure = [], budget._measure

    def observed(path):
        seen.append(os.path.basename(path))
        return measure(path)

    monkeypatch.setattr(budget, "_measure", observed)
    return seen


def test_the_oldest_steps_lose_their_screenshots_first_and_keep_their_texts(tmp_path):
    episodes = [record(tmp_path, step, step) for step in (1, 2, 9, 10)]
    assert ScreenshotBudget(tmp_path, 10_000).enforce(10) == 0
    assert with_screenshots(*episodes) == episodes
    assert ScreenshotBudget(tmp_path, 6_000).enforce(10) == 4_000
    assert with_screenshots(*episodes) == episodes[2:]
    assert all((path / "episode.json").exists() for path in episodes)


def test_the_running_step_keeps_its_screenshots_whatever_it_takes(tmp_path, caplog):
    earlier, running = record(tmp_path, 1, 1), record(tmp_path, 2, 2)
    kept = ScreenshotBudget(tmp_path, 100)
    kept.enforce(2)
    assert with_screenshots(earlier, running) == [running]
    assert "set gui_agent.record_share to record only a share of them" in caplog.text
    caplog.clear()
    kept.enforce(2)
    assert not caplog.text
    kept.enforce(3)
    assert with_screenshots(running) == []


def test_validations_lose_theirs_when_training_has_none_left(tmp_path):
    first, middle = record(tmp_path, 0, 1, validation=True), record(tmp_path, 5, 2)
    second, running = record(tmp_path, 5, 3, validation=True), record(tmp_path, 6, 4)
    kept = ScreenshotBudget(tmp_path, 7_000)
    kept.enforce(6)
    assert with_screenshots(first, middle, second, running) == [first, second, running]
    record(tmp_path, 6, 5)
    kept.enforce(6)
    assert with_screenshots(first, second) == [second]


def test_an_episode_that_is_being_played_is_left_alone(tmp_path):
    playing = tmp_path / "step_000001" / ".task__u1_0-abc"
    playing.mkdir(parents=True)
    (playing / "00.png").write_bytes(SCREENSHOT)
    assert ScreenshotBudget(tmp_path, 1).enforce(9) == 0
    assert (playing / "00.png").exists()


def test_what_was_seen_is_not_looked_at_again(tmp_path, looked_at):
    for number in range(5):
        record(tmp_path, 1, number)
    kept = ScreenshotBudget(tmp_path, 10**9)
    kept.enforce(2)
    assert len(looked_at) == 5
    record(tmp_path, 2, 5)
    kept.enforce(3)
    assert looked_at[5:] == ["task__u5_0"]
    record(tmp_path, 1, 6)  # an asynchronous trainer's old episode, finished late
    kept.enforce(3)
    assert looked_at[6:] == ["task__u6_0"]


def test_a_settled_step_is_not_even_listed(tmp_path, monkeypatch):
    record(tmp_path, 1, 1)
    os.utime(tmp_path / "step_000001", (1, 1))
    kept = ScreenshotBudget(tmp_path, 10**9)
    kept.enforce(2)
    listed, scandir = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (listed.append(os.fspath(path)), scandir(path))[1])
    kept.enforce(2)
    assert [path for path in listed if path.startswith(str(tmp_path))] == [str(tmp_path)]  # others may look elsewhere


def test_screenshots_that_came_back_are_counted(tmp_path):
    episode = record(tmp_path, 1, 1, shots=0)
    os.utime(episode, (1, 1))  # long before: time stamps of one moment may be equal
    kept = ScreenshotBudget(tmp_path, 500)
    kept.enforce(2)
    (episode / "00.png").write_bytes(SCREENSHOT)
    os.utime(episode.parent)  # as `RunRecords` does it
    assert kept.enforce(2) == 1_000


def test_one_process_of_those_that_record_keeps_the_budget_and_another_takes_over(tmp_path):
    """Two keepers are two processes to the kernel: each has a lock of its own."""
    first, second = BudgetKeeper(tmp_path, 500), BudgetKeeper(tmp_path, 500)
    episodes = [record(tmp_path, step, step) for step in (1, 2, 3)]

    def ended(keeper, step):
        keeper.recorded(step)
        keeper.wait()
        return with_screenshots(*episodes)

    assert ended(first, 2) == episodes[1:]
    assert ended(second, 3) == episodes[1:], "not its folder"
    assert ended(first, 3) == episodes[2:]
    first._lock.close()  # as the kernel does it at the process's end
    assert ended(second, 4) == []


def test_without_locks_every_process_keeps_it_and_removes_the_same(tmp_path, monkeypatch):
    def no_locks(*args):
        raise OSError("No locks available")

    monkeypatch.setattr(file_lock.fcntl, "flock", no_locks)
    episodes = [record(tmp_path, step, step) for step in (1, 2, 3, 4)]
    keepers = [BudgetKeeper(tmp_path, 7_000) for _ in range(3)]
    for keeper in keepers:
        keeper.recorded(4)
    for keeper in keepers:
        keeper.wait()
    assert with_screenshots(*episodes) == episodes[1:]
