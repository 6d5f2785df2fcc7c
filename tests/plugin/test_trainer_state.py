"""What the parts of the trainer share: the whole recipe, labels of rows, metrics that are filled later."""

import base64
import copy
import os
import pickle
import subprocess
import sys

import pytest
import torch
from omegaconf import OmegaConf
from support.composed import compose_recipe
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.trainer.ppo.v1.utils import MetricsAggregator

from arpo_verl.errors import ConfigError
from arpo_verl.plugin.trainer_state import BatchShape, LateMetrics, ResumeConfig, trainer_state
from arpo_verl.replay.labels import RowLabel


def test_every_section_of_a_recipe_leads_to_the_same_state():
    recipe = compose_recipe("embedded")
    state = trainer_state(recipe.trainer.v1.sampler.sampler_kwargs)
    assert state is trainer_state(recipe.data) is trainer_state(recipe.algorithm) is trainer_state(recipe)
    assert trainer_state(compose_recipe("embedded").data) is not state


def test_the_state_reads_each_option_where_the_recipe_has_it():
    own = ("replay.capacity_per_task=3", "trainer.default_local_dir=here", "trainer.resume_mode=disable")
    more = ("+data.mm_processor_kwargs.max_pixels=9000", "actor_rollout_ref.model.tokenizer_path=there")
    state = trainer_state(compose_recipe("embedded", *own, *more).data)
    assert state.replay.capacity_per_task == 3 and state.resume == ResumeConfig("here", "disable", None)
    assert state.agent.max_steps == state.recipe.gui_agent.max_steps and state.environment.provider == "embedded"
    model = state.recipe.actor_rollout_ref
    assert state.batch == BatchShape(model.actor.ppo_mini_batch_size, model.rollout.n)
    assert state.policy.processor == "there" and state.mm_processor_kwargs == {"max_pixels": 9000}
    assert state.sampler.poll_interval_s == 0.2 and state.sampler.log_val_episodes == 4


def test_a_run_of_single_parts_needs_no_sections_and_says_what_it_lacks(caplog, monkeypatch):
    monkeypatch.delenv("ARPO_VERL_RUN_DIR", raising=False)
    state = trainer_state(OmegaConf.create({"algorithm": {}}).algorithm)
    assert state.environment is None and state.agent.recorded_in is None and state.filter_groups == {}
    assert state.replay.enable
    assert "nothing checked it before its start, and it has no run folder" in caplog.text
    caplog.clear()
    monkeypatch.setenv("ARPO_VERL_RUN_DIR", "runs/mine")
    trainer_state(OmegaConf.create({"algorithm": {}}))
    assert not [record for record in caplog.records if record.name.startswith("arpo_verl")]
    with pytest.raises(ConfigError, match="must be a section of the recipe, got None"):
        trainer_state(None)


def test_a_label_is_the_uid_with_more_to_it():
    label = RowLabel("uid", "uid_3_0", is_replay=True, has_log_probs=False)
    assert label == "uid" and hash(label) == hash("uid") and {"uid": 1}[label] == 1
    for same in (pickle.loads(pickle.dumps(label)), copy.deepcopy(label)):
        assert (same, same.key, same.is_replay, same.has_log_probs) == ("uid", "uid_3_0", True, False)


def test_stock_grpo_groups_labelled_rows_as_it_groups_plain_ones():
    rewards, mask = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]), torch.ones(3, 2)
    plain = compute_grpo_outcome_advantage(rewards, mask, ["u", "u", "v"])
    labels = [RowLabel("u", "u_0_0", is_replay=True), RowLabel("u", "u_1_0"), RowLabel("v", "v_0_0")]
    assert torch.equal(compute_grpo_outcome_advantage(rewards, mask, labels)[0], plain[0])


def logged(metrics):
    aggregator = MetricsAggregator()
    aggregator.add_step_metrics(metrics, sample_count=4)
    return aggregator.get_aggregated_metrics()


def test_what_is_filled_before_the_step_ends_is_logged_with_it_and_the_rest_is_not():
    late = LateMetrics()
    metrics = {"known": 1.0, **late.open(["filled", "left_empty"])}
    late.fill({"filled": 2.5, "never_opened": 3.0})
    assert logged(metrics) == {"known": 1.0, "filled": 2.5}


def test_each_batch_of_a_step_keeps_its_own():
    late, aggregator = LateMetrics(), MetricsAggregator()
    for value in (1.0, 3.0):
        metrics = late.open(["x/mean"])
        late.fill({"x/mean": value})
        aggregator.add_step_metrics(metrics, sample_count=4)
    assert aggregator.get_aggregated_metrics() == {"x/mean": 2.0}


def test_a_label_s_pickle_brings_no_verl_into_the_queue_s_processes():
    label = base64.b64encode(pickle.dumps(RowLabel("u", "u_0_0", is_replay=True))).decode()
    probe = f"import base64, pickle, sys; label = pickle.loads(base64.b64decode({label!r})); "
    probe += "print(label.is_replay, [name for name in sys.modules if name.startswith(('verl', 'torch', 'ray'))])"
    env = {**os.environ, "VERL_PLATFORM": "cpu"}
    done = subprocess.run([sys.executable, "-c", probe], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []"
