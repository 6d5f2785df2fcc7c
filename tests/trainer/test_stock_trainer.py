"""Two steps of the stock trainer with a replay: of a run that is killed in its second, and of one that goes on."""

import json
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

# 8 groups, four an update.
UPDATES = 2

pytestmark = [pytest.mark.trainer, pytest.mark.desktop]


def test_the_trainer_makes_its_two_steps(runs):
    for step, run in runs.items():
        assert run.metrics.keys() == {step} and len(run.estimated[step]["groups"]) == 16


def test_a_success_is_replayed_into_a_group_that_failed(runs):
    assert all(run.metrics[step]["replay/injected"] >= 1 for step, run in runs.items())


def test_the_trainer_used_the_replays_in_its_advantages(runs):
    """Where every recorded episode of a group failed, a reward of 1 in the trainer's hands is a replay.

    In a group of two, a success and a failure have the advantages +1 and -1 by the population sigma.
    """
    for step, run in runs.items():
        record = run.estimated[step]
        groups = defaultdict(list)
        for group, reward, advantage in zip(record["groups"], record["rewards"], record["advantages"], strict=True):
            groups[group].append((reward.item(), advantage.item()))
        for rows in groups.values():
            expected = [0.0, 0.0] if rows[0][0] == rows[1][0] else [-1.0, 1.0]
            assert [advantage for _, advantage in sorted(rows)] == pytest.approx(expected, abs=1e-4)
        successes = played_successes(run.folder, step)
        replayed = [g for g, rows in groups.items() if not any(successes[g]) and max(rows)[0] == 1.0]
        assert len(replayed) == run.metrics[step]["replay/injected"] == sum(record["is_replay"])


def test_episodes_of_several_rows_are_trained_on_and_replayed(runs):
    """All rows of an episode have its advantage; the number of updates is the recipe's, whatever that of the rows."""
    for step, run in runs.items():
        record, metrics = run.rows[step], run.metrics[step]
        assert len(record["keys"]) == len(set(record["keys"])) == metrics["batch/rows"] > 16
        advantages = defaultdict(set)
        replayed = defaultdict(int)
        for key, advantage, replay in zip(record["keys"], record["advantages"], record["is_replay"], strict=True):
            advantages[key.rsplit("_", 1)[0]].add(round(advantage.item(), 4))
            replayed[key.rsplit("_", 1)[0]] += replay
        assert all(len(values) == 1 for values in advantages.values())
        assert max(replayed.values()) > 1
        assert metrics["batch/updates"] == UPDATES


def played_successes(folder: Path, step: int) -> dict[str, list[float]]:
    """What the desktops' evaluators said of each group's own episodes, as recorded."""
    successes = defaultdict(list)
    for path in (folder / "trajectories" / f"step_{step:06d}").glob("*/episode.json"):
        episode = json.loads(path.read_text())
        successes[episode["uid"]].append(episode["success"])
    return successes


def logged_groups(run, step: int) -> list[dict]:
    path = run.folder / "trajectories" / f"step_{step:06d}" / "groups.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_groups_are_logged_as_they_were_trained_on(runs):
    for step, run in runs.items():
        groups = logged_groups(run, step)
        rows = [row for group in groups for row in group["rows"]]
        record = run.estimated[step]
        for name in ("reward", "advantage"):
            values = sorted(value.item() for value in record[f"{name}s"])
            assert sorted(row[name] for row in rows) == pytest.approx(values, abs=1e-5)
        replays = [row["replay"] for row in rows if row["replay"]]
        assert len(replays) == run.metrics[step]["replay/injected"]
        both = [e for made, one in runs.items() for e in episodes(one.folder) if e["step"] == made]
        recorded = {(e["step"], e["uid"], e["session"]): e for e in both}
        sources = [recorded[tuple(replay.values())] for replay in replays if replay["uid"] is not None]
        assert all(episode["success"] == 1.0 and episode["step"] < step for episode in sources)
        played = {(e["uid"], e["session"]) for e in recorded.values() if e["step"] == step}
        assert {(group["uid"], row["session"]) for group in groups for row in group["rows"]} == played


def episodes(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in (folder / "trajectories").glob("step_*/[!.]*/episode.json")]


def test_the_pools_state_and_no_unfinished_episode_are_left(resumed):
    pool = json.loads((resumed.folder / "pool.json").read_text())
    assert pool["waiting"] == 0 and {desktop["state"] for desktop in pool["desktops"]} <= {"idle", "booting", "busy"}
    assert not list((resumed.folder / "trajectories").glob("step_*/.*"))


def test_the_trainers_metrics_are_told_without_the_replays_too(runs):
    """Replayed rows were written by the expert or the policy of step 1; the others by the one that is trained."""
    for step, run in runs.items():
        diff = run.metrics[step]["replay/without/training/rollout_probs_diff_max"]
        assert diff < 0.01 < run.metrics[step]["training/rollout_probs_diff_max"]
    second = runs[2].metrics[2]
    record = runs[2].rows[2]
    own = [reward.item() for reward, replay in zip(record["rewards"], record["is_replay"], strict=True) if not replay]
    assert second["replay/without/critic/rewards/mean"] == pytest.approx(sum(own) / len(own), abs=1e-5)
    assert second["critic/rewards/mean"] == pytest.approx(
        statistics.fmean(reward.item() for reward in record["rewards"]), abs=1e-5
    )
    staleness = "training/off_policy/trajectory_staleness/mean"
    replays = [row["replay"] for group in logged_groups(runs[2], 2) for row in group["rows"] if row["replay"]]
    is_own = any(replay["uid"] is not None for replay in replays)
    assert second[f"replay/without/{staleness}"] == 0 and (second[staleness] > 0) == is_own
    if is_own:
        assert second["replay/ratio_mean"] == pytest.approx(1, abs=0.5)
    assert "replay/ratio_mean" not in runs[1].metrics[1], "nobody knows how likely the expert's tokens were to it"


def test_the_last_lines_tell_what_was_reached_and_where(resumed):
    for line in (
        "replays injected",
        "success of these steps",
        str(resumed.folder / "metrics.jsonl"),
        str(resumed.folder / "trajectories"),
    ):
        assert line in resumed.stdout
    assert len(list((resumed.folder / "trajectories").glob("step_*/*/episode.json"))) == 16
