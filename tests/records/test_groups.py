"""What training made of an episode: advantages and replays."""

import pytest


def test_advantages_are_joined_by_uid_and_session(written, run):
    ids = [written.episode(1, uid="u1", session=session) for session in (0, 1)]
    assert run.snapshot().training(ids[1]).advantage is None
    written.group(
        1, "u1", {"session": 0, "reward": 1, "advantage": 0.7}, {"session": 1, "reward": 0, "advantage": -0.7}
    )
    assert [run.snapshot().training(id).advantage for id in ids] == [0.7, -0.7]


@pytest.mark.parametrize("step", [1, None])
def test_a_replay_names_both_episodes(written, run, step):
    success = written.episode(1, uid="old", session=3)
    failed = [written.episode(5, uid="new", session=session, success=0.0) for session in (0, 1)]
    replay = {"step": step, "uid": "old", "session": 3}
    rows = [{"session": 0, "reward": 0, "advantage": -1}, {"session": 1, "reward": 1, "advantage": 1, "replay": replay}]
    written.group(5, "new", *rows)
    snapshot = run.snapshot()
    assert snapshot.training(success).replayed_into == (failed[1],)
    assert snapshot.training(failed[1]).replayed_by == success
    assert [snapshot.training(id).replaced for id in failed] == [False, True]


def test_a_replay_of_an_unknown_episode_still_replaced_the_row(written, run):
    id = written.episode(5)
    nowhere = {"step": None, "uid": None, "session": None}
    written.group(5, "u1", {"session": 0, "reward": 1, "advantage": 1, "replay": nowhere})
    training = run.snapshot().training(id)
    assert training.replaced and training.replayed_by is None


@pytest.mark.parametrize("line", ["nonsense", "[]", "{}", '{"uid": "u1", "rows": [3, {}, {"session": "x"}]}'])
def test_the_later_line_of_a_group_counts_and_one_of_no_group_is_passed_over(written, run, line):
    id = written.episode(1)
    (written.trajectories / "step_000001" / "groups.jsonl").write_text(line + "\n")
    for advantage in (1, 2):
        written.group(1, "u1", {"session": 0, "reward": 1, "advantage": advantage})
        assert run.snapshot().training(id).advantage == advantage


def test_a_group_has_recorded_episodes_and_trained_rows(written, run):
    id = written.episode(1, uid="u1", session=2)
    written.episode(1, uid="other", session=0)
    written.group(1, "u1", {"session": 0, "reward": 0, "advantage": -1}, {"session": 2, "reward": 1, "advantage": 1})
    snapshot = run.snapshot()
    members = snapshot.index.group_of(snapshot.by_id[id])
    assert [(session, member, row.advantage) for session, member, row in members] == [(0, None, -1), (2, id, 1)]


def test_episodes_without_a_uid_are_no_group(written, run):
    id = written.episode(1, uid="", session=0)
    written.episode(1, uid="", session=1)
    snapshot = run.snapshot()
    assert snapshot.index.group_of(snapshot.by_id[id]) == [(0, id, None)]
