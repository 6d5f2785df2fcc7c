"""`groups.jsonl`: what training made of each group."""

import json

import torch
from support.replay_trajectories import stored

from arpo_verl.records.run_records import GroupLog, LoggedRow
from arpo_verl.replay.labels import RowLabel
from arpo_verl.types import EpisodeId


def rows(**replays):
    """Rows of one prompt, by session."""
    return {
        f"u-1_{session}_0": LoggedRow("task", session, 3, replays.get(f"s{session}")) for session in range(len(replays))
    }


def write(log, *keys, reward=0.0):
    labels = {position: RowLabel("u-1", key) for position, key in enumerate(keys)}
    log.write(labels, torch.full((len(keys),), reward), torch.arange(len(keys)) * 1.0)


def test_a_replay_is_named_as_far_as_it_is_known(tmp_path):
    log, file = GroupLog(), tmp_path / "step_000003" / "groups.jsonl"
    recorded = stored(step=2, episode=EpisodeId(1, "u-0", 5))
    log.open(file, 3, rows(s0=recorded, s1=stored(step=0), s2=None))
    write(log, "u-1_2_0", "u-1_0_0", "u-1_1_0")
    assert json.loads(file.read_text())["rows"] == [
        {"session": 0, "reward": 0.0, "advantage": 1.0, "replay": {"step": 1, "uid": "u-0", "session": 5}},
        {"session": 1, "reward": 0.0, "advantage": 2.0, "replay": {"step": 0, "uid": None, "session": None}},
        {"session": 2, "reward": 0.0, "advantage": 0.0, "replay": None},
    ]


def test_a_batch_is_logged_once_where_it_was_opened_and_behind_a_line_that_a_kill_left_torn(tmp_path):
    log, file = GroupLog(), tmp_path / "groups.jsonl"
    write(log, "u-1_0_0")
    assert not file.exists()
    log.open(file, 3, rows(s0=None))
    write(log, "u-1_0_0")
    write(log, "u-1_0_0")
    whole = file.read_text()
    assert json.loads(whole)["rows"][0]["reward"] == 0.0
    file.write_text(whole + whole[:20])
    log.open(file, 3, rows(s0=None))
    write(log, "u-1_0_0", reward=1.0)
    first, torn, last = file.read_text().splitlines()
    assert (first, torn) == (whole.strip(), whole[:20]) and json.loads(last)["rows"][0]["reward"] == 1.0


def test_a_disk_that_refuses_costs_the_log_and_not_the_step(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    log = GroupLog()
    log.open(tmp_path / "file" / "groups.jsonl", 3, rows(s0=None))
    write(log, "u-1_0_0")
    assert "could not be written" in caplog.text
