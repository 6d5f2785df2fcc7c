"""A trajectory as one line of JSON and back."""

from collections import UserList
from types import MappingProxyType

import numpy as np
import pytest
from support.replay_trajectories import stored

from arpo_verl.errors import ReplayError
from arpo_verl.replay.store.record import decode_record, encode_record


def through(trajectory):
    record = encode_record(trajectory, ["shot"])
    assert b"\n" not in record
    return decode_record(record, lambda name: b"first")


def test_scalars_of_numpy_and_containers_of_a_recipe_come_back_plain():
    fields = {"f": np.float32(0.5), "n": np.int64(3), "d": MappingProxyType({"x": 1}), "l": UserList([1, "a"])}
    again = through(stored(extra_fields={**fields, "t": (1, 2)})).extra_fields
    assert again == {"f": 0.5, "n": 3, "d": {"x": 1}, "l": [1, "a"], "t": [1, 2]}
    assert [type(again[name]) for name in "fndlt"] == [float, int, dict, list, list]


@pytest.mark.parametrize("value", [np.zeros(2), object(), {1}])
def test_a_field_that_json_cannot_hold_is_named_with_its_type(value):
    with pytest.raises(
        ReplayError, match=f"task a: extra_fields.odd must be a plain value.*got {type(value).__name__}"
    ):
        through(stored(extra_fields={"fine": 1, "odd": value}))


def test_a_record_that_no_stack_can_hold_is_refused():
    with pytest.raises(ReplayError, match="must be one line of JSON"):
        decode_record(b"[" * 200_000, lambda name: b"")
