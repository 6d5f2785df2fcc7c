"""A harness's success is replayed in the stock trainer's second step, on embedded desktops: of OSWorld's own agents,
unmodified, and of a function in a run that was killed and resumed.

No small policy speaks the agents' formats, and both steps must go as they should: `support/forced_replies.py` chooses
the policy's tokens. All else is as in any run. The agents' `predict` asks the endpoint, their code goes to the desktop
through OSWorld's controller, the engine's model gives the log-probs, and the trainer updates on them.
"""

import json

import pytest
from support import loading
from support.agents_environment import PROGRAM, PYTHON, VARIABLES, why_not
from trainer_run import ROOT, TrainerRun, read_steps

from arpo_verl.replay.store.persistence import load_store
from arpo_verl.tools.policy.shipped import write_shipped

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]

TIMEOUT_S = 3600.0
_FOLDER = ROOT / "arpo_verl" / "tasks" / "embedded"
SMALL = [f"data.train_files=[{_FOLDER}/dialog-confirm-yes.json,{_FOLDER}/dialog-confirm-no.json]"]
SMALL += ["data.train_batch_size=2", "actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
SMALL += ["trainer.total_training_steps=2", "trainer.val_before_train=false", "trainer.test_freq=-1"]
OFFICIAL = ["trainer.save_freq=-1", "gui_agent.max_steps=3", "gui_agent.max_reply_tokens=256"]
OFFICIAL += ["data.max_prompt_length=4096", "data.max_response_length=2048", "+gui_agent.harness_memory_mb=4096"]


def start(folder, script, *overrides):
    env = loading("forced_replies", ARPO_VERL_SCRIPT=f"support.forced_scripts:{script}")
    policy = folder / "policy"
    if not policy.exists():
        write_shipped("embedded", policy)
    return TrainerRun(folder / "run", f"actor_rollout_ref.model.path={policy}", *SMALL, *overrides, env=env)


def episodes(run_dir, step):
    return [json.loads(path.read_text()) for path in run_dir.glob(f"trajectories/step_{step:06d}/[!.]*/episode.json")]


def replays(run_dir, step):
    """What was replayed: the step that played it, of which task."""
    groups = map(json.loads, (run_dir / "trajectories" / f"step_{step:06d}" / "groups.jsonl").read_text().splitlines())
    return [(row["replay"]["step"], group["task_id"]) for group in groups for row in group["rows"] if row["replay"]]


@pytest.mark.parametrize("agent", ["uitars15", "qwen3vl"])
def test_an_official_agents_success_is_replayed_into_a_group_that_failed(tmp_path, agent):
    if problem := why_not(agent):
        pytest.skip(problem)
    variables = ",".join(f"{name}:'{value}'" for name, value in VARIABLES.items())
    harness = [f"+gui_agent.harness=[{PYTHON},{PROGRAM},{agent}]", f"+gui_agent.harness_env={{{variables}}}"]
    run = start(tmp_path, agent, *OFFICIAL, *harness)
    run.wait(TIMEOUT_S)
    steps = read_steps(run.run_dir)
    assert sorted(steps) == [1, 2] and all("actor/grad_norm" in step for step in steps.values())
    assert [step["replay/injected"] for step in steps.values()] == [0, 1]
    assert replays(run.run_dir, 2) == [(1, "dialog-confirm-yes")]
    played = {(e["task_id"], step): e for step in steps for e in episodes(run.run_dir, step)}
    solved = played["dialog-confirm-yes", 1]
    assert [e["success"] for e in episodes(run.run_dir, 1) if e["task_id"] == "dialog-confirm-yes"] == [1.0, 1.0]
    assert (len(solved["turns"]), solved["stop_reason"]) == (2, "finished")
    assert not any(e["success"] for (task, step), e in played.items() if (task, step) != ("dialog-confirm-yes", 1))
    # What was sampled is what is trained: engine and trainer agree on the probability of each of its tokens.
    name = "training/rollout_probs_diff_max"
    assert max(step.get(f"replay/without/{name}", step[name]) for step in steps.values()) < 0.01


def test_a_resumed_run_replays_what_its_harness_solved_before_it_was_killed(tmp_path):
    function = ["+gui_agent.harness=support.harness_agents:own_loop", "trainer.save_freq=1"]
    killed = start(tmp_path, "small", *function)
    second_step = killed.run_dir / "trajectories" / "step_000002"
    killed.wait_for(lambda: any(second_step.glob("*/episode.json")), TIMEOUT_S)
    killed.stop()
    (step,) = read_steps(killed.run_dir)
    assert step == 1
    store = load_store(killed.run_dir / "checkpoints" / "global_step_1" / "replay", fingerprint=None)
    (stored,) = {trajectory.task_id for trajectory in store.trajectories()}
    resumed = start(tmp_path, "nothing", *function)
    resumed.wait(TIMEOUT_S)
    ((step, metrics),) = read_steps(resumed.run_dir).items()
    assert (step, stored, metrics["replay/injected"]) == (2, "dialog-confirm-yes", 1)
    assert replays(resumed.run_dir, 2) == [(1, "dialog-confirm-yes")]
    assert not any(episode["success"] for episode in episodes(resumed.run_dir, 2))
