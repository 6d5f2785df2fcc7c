"""A step's episodes on their way to EasyR1: what is trained on, counted and written down."""

import json
from types import SimpleNamespace

import pytest
from support.easyr1 import require_easyr1
from support.replay_trajectories import stored

require_easyr1()

from arpo_verl.agent.rollout.conversation import TokenLimits  # noqa: E402
from arpo_verl.agent.rollout.episode import Episode  # noqa: E402
from arpo_verl.agent.rollout.scoring import Score  # noqa: E402
from arpo_verl.agent.rollout.sequence import EpisodeSequence  # noqa: E402
from arpo_verl.easyr1.episodes import Played  # noqa: E402
from arpo_verl.easyr1.replayer import Replayer  # noqa: E402
from arpo_verl.easyr1.settings import split_config  # noqa: E402
from arpo_verl.records.run_records import GroupLog  # noqa: E402
from arpo_verl.replay.rules import task_content  # noqa: E402
from arpo_verl.types import Size, StopReason, Task  # noqa: E402


@pytest.fixture
def replayer(chat, tmp_path):
    return Replayer(
        split_config({"data": {"train_files": "embedded"}, "run_dir": str(tmp_path)}),
        chat,
        SimpleNamespace(),
        GroupLog(),
        TokenLimits(20, 20),
    )


def played(step, *successes):
    """A group of one task; None is an episode that infrastructure failed."""
    task = Task("a", "Press Yes.", {})
    for session, success in enumerate(successes):
        key = f"u{step}_{session}_0"
        if success is None:
            yield Played(key, task, None, None)
            continue
        row = EpisodeSequence([5, 6], range(0))
        row.add_reply((7, 8), None)
        took = dict(turns=(), stop_reason=StopReason.FINISHED, generate_s=0.0, desktop_s=0.0, image_size=Size(28, 28))
        yield Played(key, task, Episode(task, (row,), (), (), success=success, **took), Score(success))


def test_a_lost_episode_stays_as_a_row_without_a_mask_and_is_no_member_of_its_group(replayer):
    rows, metrics = replayer.process(list(played(1, 1.0, 0.0, None)), 1)
    assert [sum(row.response_mask) for row in rows.values()] == [2, 2, 0]
    assert metrics["rollout/dropped"] == 1 and metrics["replay/stored"] == 1


def test_a_task_that_jumps_to_100_percent_is_counted_and_recorded(replayer, tmp_path):
    steps = [played(1, *[0.0] * 4), played(2, *[0.0] * 4), played(3, *[1.0] * 4)]
    counted = [replayer.process(list(one), step)[1]["rollout/tasks_jumped"] for step, one in enumerate(steps, start=1)]
    assert counted == [0, 0, 1]
    replayer._records.wait()
    (jump,) = (tmp_path / "trajectories" / "jumps.jsonl").read_text().splitlines()
    assert json.loads(jump) == {"task_id": "a", "step": 3, "earlier": 8, "uid": "u3", "session": 0}


def test_a_stored_success_that_cannot_be_replayed_leaves_the_store_and_ends_no_run(replayer, screenshot):
    sound = dict(screenshots=(), response_ids=(7, 8), task_content=task_content("Press Yes.", {}))
    bad = {
        "no picture": dict(screenshots=(b"no picture",)),
        "a picture without a place": dict(screenshots=(screenshot(),)),
        "too long a prompt": dict(prompt_ids=(5,) * 21),
        "too long a response": dict(response_ids=(7,) * 21, response_mask=(1,) * 21, rollout_log_probs=None),
        "another model's tokens": dict(response_ids=(7, 10**6)),
        "two rows": dict(rows=[(1, 1, 0, 0), (1, 1, 0, 0)]),
    }
    for number, changes in enumerate(bad.values()):
        replayer.store.add(stored(step=number + 2, **{**sound, **changes}))
    replayer.store.add(stored(step=1, **sound))
    rows, metrics = replayer.process(list(played(9, 0.0, 0.0)), 9)
    assert metrics["replay/injected"] == 1 and sorted(row.reward for row in rows.values()) == [0.0, 1.0]
    removed = metrics["replay/unusable"]
    for step in range(10, 40):
        removed += replayer.process(list(played(step, 0.0, 0.0)), step)[1]["replay/unusable"]
    assert removed == len(bad) and [success.step for success in replayer.store.trajectories()] == [1]


def test_without_replay_nothing_is_stored(chat, tmp_path):
    values = {"data": {"train_files": "embedded"}, "run_dir": str(tmp_path), "replay": {"enable": False}}
    replayer = Replayer(split_config(values), chat, SimpleNamespace(), GroupLog(), TokenLimits(20, 20))
    for step in (1, 2):
        _, metrics = replayer.process(list(played(step, *[2.0 - step] * 2)), step)
    assert len(replayer.store) == 0 and metrics["replay/groups_all_failed"] == 1
