"""What the door relies on in EasyR1's code: a file, a function or class in it, and what its source says in this order.

docs/easyr1.md says what for.
"""

from upstream.names import read_rows

RELIED_ON = read_rows(r"""
# The trainer: its arguments, the four methods, and what `fit()` does around them
verl/trainer/ray_trainer.py | RayPPOTrainer.__init__
    train_dataloader
    val_dataloader
    role_worker_mapping
    resource_pool_manager
    ray_worker_group_cls
    val_reward_fn
    not in list(AdvantageEstimator)
    len(train_dataloader) * config.trainer.total_epochs
verl/trainer/ray_trainer.py | RayPPOTrainer._make_batch_data
    self.data_iterator = iter(self.train_dataloader)
verl/trainer/ray_trainer.py | RayPPOTrainer._validate
    self.val_reward_score =
verl/trainer/ray_trainer.py | RayPPOTrainer._save_checkpoint
    f"global_step_{self.global_step}"
    self.train_dataloader.state_dict()
    "last_global_step": self.global_step
verl/trainer/ray_trainer.py | RayPPOTrainer._load_checkpoint
    self.global_step = int(
verl/trainer/ray_trainer.py | RayPPOTrainer.fit
    self.logger = Tracker(loggers=self.config.trainer.logger
    self._load_checkpoint()
    self.val_reward_fn is not None and self.config.trainer.val_before_train
    self.actor_rollout_ref_wg.prepare_rollout_engine()
    batch = self._make_batch_data(metrics=metrics)
    self._balance_batch(batch, metrics=metrics)
    if "token_level_scores" not in batch.batch:
    self._save_checkpoint()
verl/trainer/ray_trainer.py | compute_advantage
    "index": data.non_tensor_batch["uid"]
verl/trainer/ray_trainer.py | ResourcePoolManager
    resource_pool_spec
    mapping
verl/trainer/ray_trainer.py | Role
    ActorRolloutRef
verl/trainer/core_algos.py | register_adv_estimator
    ADV_ESTIMATOR_MAP[getattr(name, "value", name)]
verl/trainer/core_algos.py | compute_grpo_outcome_advantage
    index
verl/trainer/main.py | Runner.run
    ray.remote(FSDPWorker)
    trainer.init_workers()
    trainer.fit()
verl/trainer/main.py | main
    OmegaConf.structured(PPOConfig())
    deep_post_init()
    TORCH_NCCL_AVOID_RECORD_STREAMS
verl/trainer/config.py | PPOConfig
    data
    worker
    algorithm
    trainer
verl/utils/logger/logger.py | Tracker.__init__
    LOGGERS[logger](config)
# The engine of single turns
verl/workers/fsdp_workers.py | FSDPWorker.generate_sequences
    prompts.meta_info.update(meta_info)
verl/workers/rollout/vllm_rollout_spmd.py | vLLMRollout.generate_sequences
    non_tensor_batch.pop("raw_prompt_ids")
    non_tensor_batch.pop("multi_modal_data", None)
    "prompt_token_ids": list(raw_prompt_ids)
    self.update_sampling_params(**prompts.meta_info)
    "responses": response_ids
verl/workers/rollout/vllm_rollout_spmd.py | vLLMRollout.update_sampling_params
    setattr(self
    yield
verl/utils/checkpoint/checkpoint_manager.py | find_latest_ckpt
    get_checkpoint_tracker_filename
    last_global_step
# The silent traps
verl/workers/fsdp_workers.py | FSDPWorker._process_multi_modal_inputs
    self._cache["uid"]
    data.non_tensor_batch["uid"], data.non_tensor_batch["multi_modal_data"]
    if index not in multi_modal_inputs_cache
verl/utils/dataset.py | process_image
    int(image.width * resize_factor)
verl/utils/dataset.py | RLHFDataset.__getitem__
    get_rope_index
    torch.cat((text_position_ids, vision_position_ids)
verl/workers/rollout/vllm_rollout_spmd.py | _get_logit_bias
    {image_token_id: -100}
verl/models/transformers/qwen2_vl.py | get_rope_index
verl/models/transformers/qwen3_vl.py | get_rope_index
    processor
    input_ids
    image_grid_thw
    attention_mask
verl/utils/tokenizer.py | get_processor
    override_chat_template
verl/protocol.py | pad_dataproto_to_divisor
    size_divisor
verl/protocol.py | DataProto.from_dict
    tensors
    non_tensors
    meta_info
""")
