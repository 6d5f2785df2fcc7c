"""`benchmarks/replay_resume.py` sees what it is there to see: successes lost, replays that differ."""

import json

import pytest
import replay_resume as study

from arpo_verl.replay.store.success_store import StoredTrajectory, SuccessStore
from arpo_verl.types import EpisodeId

pytestmark = pytest.mark.study


def store_of(*steps, task_id="calc"):
    store = SuccessStore(3)
    for step in steps:
        store.add(
            StoredTrajectory(
                task_id=task_id,
                step=step,
                success=1.0,
                reward=1.0,
                prompt_ids=(1,),
                response_ids=(step,),
                response_mask=(1,),
                rollout_log_probs=None,
                screenshots=(),
                episode=EpisodeId(step, f"uid{step}", 0),
            )
        )
    return store


def test_a_store_continues_the_one_before_with_new_successes_and_without_the_oldest():
    before = store_of(1, 2, 3)
    assert study.continues(before, store_of(1, 2, 3), 3)
    assert study.continues(before, store_of(1, 2, 3, 4, 4), 3)
    for torn in (store_of(1, 3, 4), store_of(2, 1, 4), store_of(), store_of(1, 2, 3, task_id="dialog")):
        assert not study.continues(before, torn, 3)


def test_a_replay_that_the_store_did_not_ask_for_is_seen(tmp_path):
    store = store_of(1, 2, 3)
    asked = study.replays_asked_for(store, "calc", 2, step=4)
    assert len(asked) == 2 and asked < {trajectory.episode for trajectory in store.trajectories()}
    sources = [{"step": e.step, "uid": e.uid, "session": e.session} for e in asked]
    groups = [{"task_id": "calc", "rows": [{"replay": source}, {"replay": None}]} for source in sources]
    (tmp_path / "step_000004").mkdir()
    (tmp_path / "step_000004" / "groups.jsonl").write_text("".join(json.dumps(group) + "\n" for group in groups))
    assert study.read_replays(tmp_path, 4, groups=8) == {"calc": asked}
    assert study.read_replays(tmp_path, 4, groups=1) != {"calc": asked}
    assert study.read_replays(tmp_path, 5, groups=8) == {}
