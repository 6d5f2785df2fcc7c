"""A success of several rows as a value: put together, taken apart, written and read."""

import dataclasses
import json

import pytest

from arpo_verl.errors import ReplayError
from arpo_verl.replay.labels import RowLabel, rows_to_episodes
from arpo_verl.replay.store.record import decode_record, encode_record
from arpo_verl.replay.trajectory import RowSpan, StoredRow, StoredTrajectory

FIELDS = {"task_id": "a", "step": 1, "success": 1.0, "reward": 1.0, "screenshots": (b"s0", b"s1", b"s2")}
ROWS = [
    StoredRow([1, 2], [3, 4, 5], [1, 0, 1], [-0.5, 0.0, -1.0], range(2)),
    StoredRow([6, 7, 8], [9], [1], [-2.0], range(1, 3)),
]


def trajectory(rows=ROWS, **changes):
    return StoredTrajectory.of_rows(rows, **{**FIELDS, **changes})


def as_lists(row):
    return [None if part is None else part if isinstance(part, range) else list(part) for part in row]


def test_rows_put_together_come_apart_as_they_were():
    assert [as_lists(row) for row in trajectory().each_row()] == [as_lists(row) for row in ROWS]
    assert trajectory().rows == (RowSpan(2, 3, 0, 2), RowSpan(3, 1, 1, 2))
    without = [row._replace(rollout_log_probs=None) for row in ROWS]
    assert [row.rollout_log_probs for row in trajectory(without).each_row()] == [None, None]


def test_a_record_of_several_rows_is_read_as_it_was_written():
    names = {"s0": b"s0", "s1": b"s1", "s2": b"s2"}
    assert decode_record(encode_record(trajectory(), list(names)), names.__getitem__) == trajectory()


def test_a_trajectory_of_one_row_is_written_as_before_there_were_several():
    """Two stores, one written before, are merged without a success twice."""
    one = StoredTrajectory(**FIELDS, prompt_ids=[1], response_ids=[2], response_mask=[1], rollout_log_probs=None)
    assert one.rows == (RowSpan(1, 1, 0, 3),)
    record = encode_record(one, ["x", "y", "z"])
    assert "rows" not in json.loads(record)
    assert decode_record(record, {"x": b"s0", "y": b"s1", "z": b"s2"}.__getitem__) == one


@pytest.mark.parametrize(
    "rows",
    [
        [RowSpan(2, 3, 0, 2)],
        [RowSpan(2, 3, 0, 2), RowSpan(3, 1, 1, 1)],
        [RowSpan(2, 3, 0, 1), RowSpan(3, 1, 2, 1)],
        [RowSpan(5, 4, 0, 3), RowSpan(0, 0, 0, 3)],
        [RowSpan(6, 3, 0, 2), RowSpan(-1, 1, 1, 2)],
        [RowSpan(2.0, 3, 0, 2), RowSpan(3, 1, 1, 2)],
        [RowSpan(2, 3, 0.5, 1.5), RowSpan(3, 1, 1, 2)],
        [RowSpan(2, 3, False, 2), RowSpan(3, 1, True, 2)],
    ],
)
def test_rows_that_do_not_make_up_the_trajectory_are_refused(rows):
    with pytest.raises(ReplayError, match="its rows must have its 5 and 4 tokens and show its 3 screenshots in order"):
        dataclasses.replace(trajectory(), rows=rows)


def test_rows_of_one_episode_are_found_in_any_order_beside_rows_without_a_label():
    labels = [RowLabel("u", key) for key in ("u_1_1", "u_0_0", "u_1_0", "u_1_10", "u_1_9")]
    index = [*labels[:2], "pad", *labels[2:], "pad"]
    assert rows_to_episodes(index) == ([4, 1, 2, 6], [0, 1, 2, 0, 0, 0, 3])
