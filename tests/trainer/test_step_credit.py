"""Two steps of the stock trainer with credit within an episode: each turn has what its recorded screenshots say."""

import json
import os
from collections import defaultdict

import pytest
import torch
from trainer_run import ROOT, Workplace

from arpo_verl.plugin.estimator import group_advantages, group_scales
from arpo_verl.plugin.step_credit import ANCHOR_STATES, EpisodeTurns, StepCreditConfig, anchor_credit
from arpo_verl.rollout.screen import stack, thumbnail
from arpo_verl.rollout.vision import decode_screenshot

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]
# A row shows one screenshot: its number is that of its turn.
OPTIONS = ["gui_agent.context=window", "gui_agent.max_screenshots=1", "actor_rollout_ref.rollout.n=4"]
OPTIONS += ["algorithm.step_credit.kind=anchor_states"]
SCALING = {"std": "population", "epsilon": 1e-6}


def test_the_trainer_updates_on_the_advantages_of_turns(workplace: Workplace):
    recorded = workplace.folder / "step-credit" / "recorded"
    recorded.mkdir(parents=True)
    path = os.pathsep.join([str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"VERL_USE_EXTERNAL_MODULES": "support.record_advantages", "PYTHONPATH": path}
    env["ARPO_VERL_RECORDED"] = str(recorded)
    trainer = workplace.start("step-credit", 2, *OPTIONS, env=env)
    trainer.wait(timeout_s=1800)

    logged = [json.loads(line)["data"] for line in (trainer.run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [data for data in logged if "credit/anchored_share" in data]
    assert len(steps) == 2
    # All rollouts of a task begin before the same screen.
    assert all(data["credit/anchored_share"] > 0.2 and data["credit/anchor_group_size"] > 2 for data in steps)
    differ = 0
    for step, file in enumerate(sorted(recorded.glob("advantages-*.pt")), 1):
        record = torch.load(file)
        groups = defaultdict(lambda: defaultdict(dict))
        for key, group, *values in zip(
            *(record[name] for name in ("keys", "groups", "rewards", "advantages")), strict=True
        ):
            if key is not None and not any_replay(record, group):
                session, turn = map(int, key.rsplit("_", 2)[1:])
                groups[group][session][turn] = [value.item() for value in values]
        for group, sessions in groups.items():
            expected = expected_advantages(trainer.run_dir, step, group, sessions)
            trained = [
                [sessions[session][turn][1] for turn in sorted(sessions[session])] for session in sorted(sessions)
            ]
            assert trained == [pytest.approx(turns, abs=1e-4) for turns in expected]
            differ += any(len(set(turns)) > 1 for turns in expected)
    assert differ


def any_replay(record, group):
    return any(
        is_replay for other, is_replay in zip(record["groups"], record["is_replay"], strict=True) if other == group
    )


def expected_advantages(run_dir, step, group, sessions):
    """Of each turn of the group's episodes, by the screenshots that were recorded."""
    rewards = torch.tensor([sessions[session][0][0] for session in sorted(sessions)])
    episodes = []
    for session, reward in zip(sorted(sessions), rewards.tolist(), strict=True):
        (folder,) = run_dir.glob(f"trajectories/step_{step:06d}/*__{group}_{session}")
        shots = [decode_screenshot(file.read_bytes()) for file in sorted(folder.glob("*.png"))]
        episodes.append(
            EpisodeTurns(group, reward, stack([thumbnail(shot) for shot in shots[: len(sessions[session])]]))
        )
    whole = group_advantages(rewards, [group] * len(rewards), **SCALING)
    scales = group_scales(rewards, [group] * len(rewards), **SCALING, divide_by_std=True)
    credits = anchor_credit(episodes, StepCreditConfig(ANCHOR_STATES))
    return [
        [a + turn / scale for turn in credit.advantages_T.tolist()]
        for a, scale, credit in zip(whole.tolist(), scales.tolist(), credits, strict=True)
    ]
