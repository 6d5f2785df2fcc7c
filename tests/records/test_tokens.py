"""What is read of an episode's tokens."""

import json
import os

import pytest
import torch
from support.replay_trajectories import stored

from arpo_verl.records.run_records import GroupLog, LoggedRow
from arpo_verl.records.tokens import Trained, read_tokens
from arpo_verl.replay.labels import RowLabel
from arpo_verl.types import EpisodeId

REPLY = {"token_ids": [1, 2], "texts": ["a", "b"], "log_probs": [-0.5, -1]}


def write(folder, tokens, *lines):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokens.json").write_text(tokens if isinstance(tokens, str) else json.dumps(tokens))
    if lines:
        (folder / "log_probs.jsonl").write_text("\n".join(lines) + "\n")
    return read_tokens(folder)


def test_the_trainer_s_log_probs_lie_beside_the_tokens_that_it_trained_on(tmp_path):
    """An episode of two rows, one that a replay replaced, one that nobody recorded."""
    places = ((3, "u-1_0"), (1, "u-0_5"), (3, "u-1_1"))
    own, source, other = (tmp_path / f"step_{step:06d}" / f"task__{name}" for step, name in places)
    for folder in (own, source, other):
        write(folder, [REPLY, {**REPLY, "token_ids": [3], "texts": ["c"], "log_probs": None}])
    rows = {
        "u-1_0_0": LoggedRow("task", 0, 3),
        "u-1_1_0": LoggedRow("task", 1, 3, stored(task_id="task", step=1, episode=EpisodeId(1, "u-0", 5))),
        "u-1_2_0": LoggedRow("task", 2, 3, stored(step=0)),
        "u-1_3_0": LoggedRow("task", 3, 3),
    }
    log = GroupLog()
    log.open(tmp_path / "step_000004" / "groups.jsonl", 4, rows)
    log_probs = {"u-1_0_10": [-3.0], "u-1_0_0": [-1.0, -2.00004], "u-1_1_0": [-4.0, -5.0, -6.0]}
    log_probs |= {"u-1_2_0": [-7.0] * 3, "u-1_3_0": [-8.0] * 3}
    labels = {i: RowLabel("u-1", key) for i, key in enumerate(log_probs)}
    log.write(labels, torch.zeros(5), torch.zeros(5), log_probs)
    reply, last = read_tokens(own)
    assert (reply.texts, reply.log_probs, last.log_probs) == (["a", "b"], [-0.5, -1], None)
    assert [one.trained for one in (reply, last)] == [[Trained(4, [-1.0, -2.0])], [Trained(4, [-3.0])]]
    assert [one.trained for one in read_tokens(source)] == [[Trained(4, [-4.0, -5.0])], [Trained(4, [-6.0])]]
    assert [one.trained for one in read_tokens(other)] == [[], []]
    assert not (tmp_path / "step_000003" / "task__u-1_3").exists()


@pytest.mark.parametrize(
    "tokens",
    [
        "",
        "{}",
        "[null]",
        '[{"token_ids": "ab"}]',
        '[{"token_ids": [1], "texts": [2]}]',
        "[" * 5000,
        json.dumps([{**REPLY, "token_ids": [0] * 60_000}]),
        json.dumps([REPLY] * 30_000),
    ],
)
def test_what_is_no_list_of_replies_is_none(tmp_path, tokens):
    assert write(tmp_path, tokens) == []


def test_odd_values_are_left_out(tmp_path):
    odd = [{**REPLY, "texts": ["a" * 999]}, {"token_ids": [1]}]
    odd.append({**REPLY, "texts": ["a" * 999, "\ud800"], "log_probs": [float("nan"), -(10**400)]})
    replies = write(tmp_path, odd, "{", '{"step": "1"}', '{"step": 1, "log_probs": [0]}', "[]", "7")
    assert [reply.num_tokens for reply in replies] == [2, 1, 2]
    assert [reply.texts and [len(text) for text in reply.texts] for reply in replies] == [None, None, [100, 1]]
    assert [reply.log_probs for reply in replies] == [[-0.5, -1], None, [None, None]]
    assert not any(reply.trained for reply in replies)


def test_a_pipe_or_a_link_in_its_place_hangs_nobody(tmp_path):
    os.mkfifo(tmp_path / "tokens.json")
    (tmp_path / "log_probs.jsonl").symlink_to("/dev/zero")
    assert read_tokens(tmp_path) == []
