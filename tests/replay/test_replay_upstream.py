"""What replay leans on in veRL 0.9.1 and TransferQueue: fails when an upgrade moves it."""

import dataclasses
import inspect
import re

import transfer_queue as tq
from verl.experimental.agent_loop import AgentLoopOutput, AgentLoopWorker
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer


def parameters(function):
    # Ray adds a parameter of its own to the methods of what becomes an actor.
    return [name for name in inspect.signature(function).parameters if name != "_ray_trace_ctx"]


def test_both_samplers_sample_by_step_partition_and_size():
    for cls in (ReplayBuffer, ReplayBufferAsync):
        assert parameters(cls.sample) == ["self", "global_steps", "partition_id", "batch_size"]
        assert "sampler_kwargs" in parameters(cls.__init__)


def test_a_batch_is_keys_and_tags_of_a_partition():
    assert {"keys", "tags", "partition_id"} <= {f.name for f in dataclasses.fields(tq.KVBatchMeta)}
    assert parameters(tq.kv_batch_put)[:4] == ["keys", "partition_id", "fields", "tags"]
    assert parameters(tq.kv_batch_get) == ["keys", "partition_id", "select_fields"]


def test_the_workers_compute_model_inputs_from_processor_and_tokenizer_alone():
    assert parameters(AgentLoopWorker._compute_multi_modal_inputs) == ["self", "output", "input_ids"]
    assert parameters(AgentLoopWorker._compute_position_ids)[:4] == [
        "self",
        "input_ids",
        "attention_mask",
        "multi_modal_inputs",
    ]
    functions = ("_compute_multi_modal_inputs", "_compute_position_ids", "_get_mm_processor_kwargs")
    used = {
        name for f in functions for name in re.findall(r"self\.(\w+)", inspect.getsource(getattr(AgentLoopWorker, f)))
    }
    assert used == {"processor", "tokenizer", "mm_processor_kwargs", "_get_mm_processor_kwargs"}


def test_an_agent_loops_output_has_the_fields_that_are_stored():
    fields = ["prompt_ids", "response_ids", "response_mask", "response_logprobs", "multi_modal_data", "reward_score"]
    fields += ["num_turns", "metrics", "extra_fields", "mm_processor_kwargs"]
    assert set(fields) <= AgentLoopOutput.model_fields.keys()
    # Any other field would be lost by a replay: look at it, then name it here.
    assert AgentLoopOutput.model_fields.keys() - set(fields) == {"routed_experts", "mm_processor_output"}


def test_a_row_is_written_as_it_was():
    source = inspect.getsource(AgentLoopWorkerTQ.__ray_metadata__.modified_class._agent_loop_postprocess)
    for line in (
        'keys.append(f"{uid}_{session_id}_{i}")',
        'field.pop("multi_modal_data", None)',
        'field["loss_mask"] = field["response_mask"]',
        'field["input_ids"] = input_ids',
        'field["position_ids"] = position_ids',
        'field["multi_modal_inputs"] = multi_modal_inputs',
        '"seq_len": prompt_len + response_len,',
    ):
        assert line in source, line


def test_sampling_precedes_scoring_and_the_estimator_gets_the_algorithm_section():
    step = inspect.getsource(PPOTrainer._step_once)
    order = ["self.replay_buffer.sample(", "self._compute_old_log_prob(", "self._compute_advantage("]
    assert sorted(order, key=step.index) == order
    assert "metrics.update(off_policy_metrics)" in step
    assert "config=self.config.algorithm," in inspect.getsource(PPOTrainer._compute_advantage)


def test_stock_grpo_takes_what_we_hand_to_it():
    expected = ["token_level_rewards", "response_mask", "index", "epsilon", "norm_adv_by_std_in_grpo", "config"]
    assert parameters(compute_grpo_outcome_advantage) == expected
