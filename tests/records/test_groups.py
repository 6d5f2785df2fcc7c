"""What training made of an episode: advantages and replays."""

import pytest


@pytest.mark.parametrize("line", ["nonsense", "[]", "{}", '{"uid": "u1", "rows": [3, {}, {"session": "x"}]}'])
def test_the_later_line_of_a_group_counts_and_one_of_no_group_is_passed_over(written, run, line):
    id = written.episode(1)
    (written.trajectories / "step_000001" / "groups.jsonl").write_text(line + "\n")
    for advantage in (1, 2):
        written.group(1, "u1", {"session": 0, "reward": 1, "advantage": advantage})
        assert run.snapshot().training(id).advantage == advantage


def test_episodes_without_a_uid_are_no_group(written, run):
    id = written.episode(1, uid="", session=0)
    written.episode(1, uid="", session=1)
    snapshot = run.snapshot()
    assert snapshot.index.group_of(snapshot.by_id[id]) == [(0, id, None)]
