"""The bound of what a run's records take on disk."""

import json
import os

import pytest

from arpo_verl.records import budget
from arpo_verl.records.budget import ScreenshotBudget

SCREENSHOT = b"\x89PNG" + bytes(996)


def record(folder, step, number, *, validation=False, shots=2):
    """An episode of two screenshots of 1,000 bytes; returns its folder."""
    path = folder / f"step_{step:06d}" / f"task__u{number}_0"
    path.mkdir(parents=True)
    (path / "episode.json").write_text(json.dumps({"validation": validation}))
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
    assert "record a share of them with gui_agent.record_share" in caplog.text
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
    assert listed == [str(tmp_path)]


def test_screenshots_that_came_back_are_counted(tmp_path):
    episode = record(tmp_path, 1, 1, shots=0)
    kept = ScreenshotBudget(tmp_path, 500)
    kept.enforce(2)
    (episode / "00.png").write_bytes(SCREENSHOT)
    kept.changed(1)
    assert kept.enforce(2) == 1_000
