"""Each replay method in the stock trainer: three steps in which it acts in each mode; a kill and a resume of one that
remembers."""

import json
from collections import defaultdict
from statistics import fmean, median

import pytest
from support.trajectory_digest import digest
from trainer_run import MODES, read_steps

from arpo_verl.records.run import open_run
from arpo_verl.replay.store.persistence import load_store

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]
METHODS = ("fresh", "rlep", "spear", "exgrpo")
COLUMNS = ("groups", "rewards", "advantages", "is_replay")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_acts_in_the_stock_trainer(start, method, mode):
    run = start(f"{method}-{mode}", 3, f"replay.method={method}", "actor_rollout_ref.rollout.n=4", *MODES[mode])
    run.wait(timeout_s=3600)
    steps = read_steps(run.run_dir)
    assert sorted(steps) == [1, 2, 3] and all(step["actor/grad_norm"] > 0 for step in steps.values())
    injected = sum(step["replay/injected"] for step in steps.values())
    added = sum(step["replay/added"] for step in steps.values())
    assert injected >= 1 and added == (injected if method in ("rlep", "spear") else 0)
    assert any("replay/token_weight_mean" in step for step in steps.values()) == (method == "exgrpo")
    rows = [row for group in open_run(run.run_dir).groups() for row in group.rows]
    assert sum(row.replay is not None for row in rows) == injected
    assert sum(row.session >= 1000 for row in rows) == added


@pytest.mark.parametrize("mode", ["sync", "separate_async"])
def test_a_killed_run_goes_on_with_what_its_method_remembers(start, read_run, mode):
    """`kill -9` comes when memory and store are a batch ahead of the save; the same command resumes."""

    def begin():
        options = ("replay.method=spear", "+replay.method_options.warm_up_steps=0", "actor_rollout_ref.rollout.n=4")
        return start(f"killed-spear-{mode}", 2, *options, *MODES[mode])

    killed = begin()
    checkpoints, recorded = killed.run_dir / "checkpoints", killed.run_dir / "recorded"
    killed.wait_for((recorded / "replays-2.json").exists, 3600)
    killed.stop()
    assert (checkpoints / "latest_checkpointed_iteration.txt").read_text() == "1"
    saved = load_store(checkpoints / "global_step_1" / "replay", fingerprint=None)
    stored = [digest(trajectory) for trajectory in saved.trajectories()]
    batches = len(list(recorded.glob("advantages-*.pt")))
    (recorded / "replays-2.json").unlink()
    begin().wait(3600)
    run = read_run(killed.run_dir, 0, "")
    assert run.restored == stored and len(saved.memory) > 0
    remembered = load_store(checkpoints / "global_step_2" / "replay", fingerprint=None).memory
    assert remembered[: len(saved.memory)] == saved.memory and len(remembered) > len(saved.memory)
    replays = json.loads((recorded / "replays-2.json").read_text())
    assert replays and all(replay in stored for replay in replays)
    episodes = list(zip(*(run.estimated[batches][name] for name in COLUMNS), strict=True))
    rewards = defaultdict(list)
    for group, reward, _, is_replay in episodes:
        if not is_replay:
            rewards[group].append(float(reward))
    baseline = median([*saved.memory, *map(fmean, rewards.values())])
    weighed = [(float(advantage), float(reward)) for _, reward, advantage, is_replay in episodes if is_replay]
    assert len(weighed) == len(replays)
    assert [advantage for advantage, _ in weighed] == pytest.approx([reward - baseline for _, reward in weighed])
