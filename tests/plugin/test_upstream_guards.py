"""What replay leans on in veRL 0.9.1 and TransferQueue: fails when an upgrade moves it."""

import dataclasses
import inspect
import re

import transfer_queue as tq
from verl.experimental.agent_loop import AgentLoopOutput, AgentLoopWorker
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
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


def test_both_samplers_wait_where_we_look_ahead_and_on_metadata_that_we_read():
    for loop in (ReplayBuffer.sample, ReplayBufferAsync.wait_for_sampleable):
        source = inspect.getsource(inspect.unwrap(loop))
        assert "last_debug_time = self._wait_for_next_poll(partition_id, last_debug_time)" in source
        assert source.index("self._sync_metadata_from_transfer_queue()") < source.index("self._wait_for_next_poll(")
    source = inspect.getsource(ReplayBuffer._sync_metadata_from_transfer_queue)
    for name in ("self.partitions", "self.finished_keys", "self.failure_keys"):
        assert name in source, name


def test_metrics_of_the_sampler_are_read_after_the_update():
    step = inspect.getsource(PPOTrainer.step)
    assert step.index("self._step_once(") < step.index("metrics_aggregator.add_step_metrics(iter_metrics")
    assert 'data.non_tensor_batch["uid"] = np.array(data.batch.pop("uid").tolist(), dtype=object)' in inspect.getsource(
        PPOTrainer._compute_advantage
    )


def test_the_trainer_makes_its_sampler_before_it_loads_anything_and_resumes_as_we_look_for_it():
    make = inspect.getsource(PPOTrainer.__init__)
    assert "self.replay_buffer = self._build_replay_buffer()" in make and "_load_checkpoint" not in make
    load = inspect.getsource(PPOTrainer._load_checkpoint)
    for line in ('resume_mode == "disable"', 'resume_mode == "auto"', 'resume_mode == "resume_path"'):
        assert line in load, line
    assert "find_latest_ckpt_path(checkpoint_folder)" in load


def test_the_callback_comes_last_in_a_save():
    """So a kill in between leaves a checkpoint that counts, without a store: see `checkpoints.restore_store`."""
    save = inspect.getsource(PPOTrainer._save_checkpoint)
    assert save.index("latest_checkpointed_iteration.txt") < save.rindex("self.checkpoint_callback.on_save(")
    assert parameters(CheckpointCallback.on_save)[:5] == [
        "self",
        "trainer",
        "global_step",
        "checkpoint_dir",
        "async_save",
    ]


def test_stock_grpo_takes_what_we_hand_to_it():
    expected = ["token_level_rewards", "response_mask", "index", "epsilon", "norm_adv_by_std_in_grpo", "config"]
    assert parameters(compute_grpo_outcome_advantage) == expected
