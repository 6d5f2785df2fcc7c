"""What the package relies on in upstream beyond names that are there.

`uses.py` finds every upstream name in the package's source. `test_contracts.py` checks that each is there and what
this file adds; `make test-verl` asks that of another release.
"""

import re

# What is passed where mypy does not look: to methods of objects without types by us, and by keyword by veRL to those
# that we override, where mypy compares types by their places.
PASSED = {
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample": "global_steps partition_id batch_size",
    "verl.checkpoint_engine.base:CheckpointEngine.send_weights": "weights global_steps",
    "verl.checkpoint_engine.base:CheckpointEngine.receive_weights": "global_steps",
    "tensordict:TensorDict.chunk": "chunks",
    "desktop_env.controllers.python:PythonController.execute_python_command": "command",
    "desktop_env.controllers.setup:SetupController.setup": "config use_proxy",
    "desktop_env.controllers.setup:SetupController._launch_setup": "command shell",
    "desktop_env.controllers.setup:SetupController._execute_setup": "command",
    "desktop_env.desktop_env:create_vm_manager_and_provider": "provider_name region use_proxy",
}

# What upstream will call its own answer to a patch, and in which thread. Where it is there, the patch may go.
ANSWERS = {
    "EQUAL_LENGTHS": ("verl.utils.tensordict_utils:normalize_3d_position_ids", "verl#7899"),
    "SHARED_ENCODER": ("verl.utils.vision_dp", "verl#5230"),
    "IMAGE_CACHES": ("vllm.multimodal.utils:strip_covered_mm_data", "vllm#52041"),
}


def read_rows(text: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """Read a table of `OUR MODULE | NAME`, each with its lines below it; names right above each other share them."""
    rows: list[tuple[str, str, tuple[str, ...]]] = []
    for block in re.findall(r"^((?:\w\S* \| .+\n)+)((?:    .+\n)+)", re.sub(r"^#.*\n", "", text, flags=re.M), re.M):
        lines = tuple(line.strip() for line in block[1].splitlines())
        rows += [(*name.split(" | "), lines) for name in block[0].splitlines()]
    return rows


# What upstream's code does beyond names, where a test that calls the real thing would not notice a change. The module
# of ours that relies on it, the name, and what its source says, in this order.
RELIED_ON = read_rows(r"""
# A row, its key and its tag, as the rollout worker writes them
plugin.rows | verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._agent_loop_postprocess
    keys.append(f"{uid}_{session_id}_{i}")
    field.pop("multi_modal_data", None)
    field["loss_mask"] = field["response_mask"]
    field["input_ids"] = input_ids
    field["position_ids"] = position_ids
    field["multi_modal_inputs"] = multi_modal_inputs
    "seq_len": prompt_len + response_len,
    "global_steps": kwargs["global_steps"],
# Pixel values: where a row's are made, in every mode, and where an engine puts a micro-batch's together
plugin.loop_manager | verl.trainer.main_ppo:TaskRunnerV1.init_agent_loop_manager
    .get("agent_loop_manager_class")
    load_class_from_fqn(manager_class_fqn, "AgentLoopManager")
    .create(
plugin.loop_manager | verl.experimental.agent_loop.agent_loop:AgentLoopManager._init_agent_loop_workers
    self.agent_loop_workers_class.options(
    self.config,
    self.llm_client,
    self.teacher_client,
    self.reward_loop_worker_handles,
# A prompt's end: whose tasks a worker's call waits for, and that they wait for its sessions
plugin.loop_manager | verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ.generate_sequences
    self.background_tasks.add(task)
plugin.loop_manager | verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._run_prompt
    await _settle_session_tasks(tasks)
plugin.loop_manager | verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._agent_loop_postprocess
    self._compute_multi_modal_inputs(output, input_ids)
engines.pixels | verl.utils.model:extract_multi_modal_inputs
    torch.cat(values, dim=0)
engines.pixels | verl.workers.engine.fsdp.transformer_impl
engines.pixels | verl.workers.engine.megatron.transformer_impl
engines.pixels | verl.workers.engine.automodel.transformer_impl
engines.pixels | verl.workers.engine.torchtitan.transformer_impl
    = extract_multi_modal_inputs(
# Turns: an episode's requests have one id, all images go along, and rows are put from another event loop
plugin.agent_loop | verl.workers.rollout.router:GlobalRequestLoadBalancer.acquire_server
    if request_id in self._request_id_to_server:
    server_id = self._request_id_to_server[request_id]
    return server_id, self._servers[server_id]
plugin.sent_images | verl.workers.rollout.llm_server:LLMServerClient.generate
    await self._acquire_server(
    request_id,
    server.generate.remote(
    image_data=image_data,
plugin.loop_manager | transfer_queue.utils.zmq_utils:_lease_owner
    return asyncio.get_running_loop()
plugin.queue | verl.trainer.ppo.v1.agent_loop_tq:AgentLoopWorkerTQ._agent_loop_postprocess
    partition_id="train" if not validate else "val"
plugin.padding | verl.trainer.ppo.v1.trainer_base:PPOTrainer
    not tag.get("is_padding", False) for tag in batch.tags
plugin.padding | verl.workers.engine_workers:TrainingWorker.train_mini_batch
    assert mini_batch_size % self.engine.get_data_parallel_size() == 0
plugin.recipe.footprint | verl.trainer.ppo.v1.trainer_separate_async:PPOTrainerSeparateAsync._compute_old_log_prob
    save_model_to_cpu(0)
    save_model_to_cpu(self.local_trigger_step)
plugin.recipe.options | verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_dataloader
    self.steps_per_epoch = len(self.train_dataset) // self.config.data.train_batch_size
    total_training_steps = self.steps_per_epoch * self.config.trainer.total_epochs
engines.cpu.server | verl.experimental.agent_loop.agent_loop:AgentLoopWorker._compute_position_ids
    mm_token_type_ids[0][input_ids[0] == image_token_id] = 1
    self.processor.get_rope_index(
# Whoever is given a section of the recipe has a node of the one that the trainer's process resolved
plugin.trainer_state | verl.trainer.main_ppo:TaskRunnerV1.run
    OmegaConf.resolve(config)
    self.trainer = trainer_cls(config=config)
plugin.trainer_state | verl.trainer.ppo.v1.trainer_base:PPOTrainer.__init__
    self.config = config
    self._build_replay_buffer()
plugin.trainer_state | verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_dataloader
    create_rl_dataset(
    self.config.data,
plugin.trainer_state | verl.trainer.ppo.utils:create_rl_dataset
    config=data_config,
# A step of the trainer: sampled, scored, estimated; metrics of the sampler are read after the update
plugin.sampler | verl.trainer.ppo.v1.trainer_base:PPOTrainer._build_replay_buffer
    load_extern_type(custom_sampler.path, custom_sampler.name)
    sampler_kwargs=sampler_config.sampler_kwargs,
plugin.sampler | verl.trainer.ppo.v1.trainer_base:PPOTrainer._step_once
    self.replay_buffer.sample(
    self._compute_old_log_prob(
    self._compute_advantage(
plugin.sampler | verl.trainer.ppo.v1.trainer_base:PPOTrainer._step_once
    metrics.update(off_policy_metrics)
plugin.estimator | verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_advantage
    config=self.config.algorithm,
plugin.estimator | verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_advantage
    data.non_tensor_batch["uid"] = np.array(data.batch.pop("uid").tolist(), dtype=object)
plugin.trainer_state | verl.trainer.ppo.v1.trainer_base:PPOTrainer.step
    self._step_once(
    metrics_aggregator.add_step_metrics(iter_metrics
# Both samplers wait where we look ahead, on metadata that we read
plugin.sampler | verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample
plugin.sampler | verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync.wait_for_sampleable
    self._sync_metadata_from_transfer_queue()
    last_debug_time = self._wait_for_next_poll(partition_id, last_debug_time)
plugin.sampler | verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._sync_metadata_from_transfer_queue
    self.partitions
    self.finished_keys
    self.failure_keys
# Why a reward function must not return these names
agent.rollout.scoring | verl.trainer.ppo.v1.trainer_base:PPOTrainer._validate
    reward_extra_infos_dict["reward"].extend(scores)
    | {"uid": dump_all_keys}
agent.rollout.scoring | verl.trainer.ppo.v1.trainer_base:PPOTrainer._val_metrics_update
    core_var = "acc" if "acc" in var2metric2val else "reward"
agent.rollout.scoring | verl.trainer.ppo.v1.trainer_base:PPOTrainer._write_generations
    "input": inputs
    "output": outputs
    "gts": gts
    "step": [
    base_data[k] = v
agent.rollout.scoring | verl.trainer.ppo.metric_utils:process_validation_metrics
    var2vals["acc"] = observed_acc + [0.0] * missing_count
    isinstance(var_vals[0], str)
    np_mean(var_vals)
# Groups are thrown away and filtered where we look in; what veRL gives to its own samplers alone
plugin.sampler | verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._terminal_eviction_reasons
plugin.sampler | verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync._terminal_eviction_reasons
    self._dapo_filtered_keys(partition_id)
plugin.sampler | verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._evict_terminal_groups
    self._clear_groups(partition_id, evicted_uids)
plugin.sampler | verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample
    self._clear_groups(partition_id, surplus_uids)
plugin.sampler | verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._dapo_filtered_keys
    classification_cache = self._dapo_classification_cache[partition_id]
plugin.sampler | verl.trainer.ppo.v1.trainer_base:PPOTrainer._build_replay_buffer
    if not has_custom_sampler:
    filter_groups_metric=
    train_batch_size=
    max_inflight_gen_batches=
plugin.sampler | verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_dataloader
    self.config.data.gen_batch_size = 1
# The queue is saved with the batch that was trained on
plugin.sampler | verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit
    self._save_checkpoint()
    tq.kv_clear(keys=batch.keys
plugin.checkpoints | verl.trainer.ppo.v1.trainer_base:PPOTrainer._save_checkpoint
    "transfer_queue"
# Several batches a step, aggregated by their metrics' names
plugin.sampler | verl.trainer.ppo.v1.trainer_base:PPOTrainer.__init__
    .get("parameter_sync_step", 1)
plugin.step_metrics | verl.trainer.ppo.v1.trainer_base:PPOTrainer.step
    for trigger_idx in range(self.parameter_sync_step):
plugin.step_metrics | verl.trainer.ppo.v1.utils:MetricsAggregator
    return "weighted_avg"
# The patch of the trainer
plugin.patches | verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_advantage
    data, is_metrics = compute_rollout_correction_and_add_to_batch(data, rollout_corr_config)
plugin.patches | verl.trainer.ppo.rollout_corr_helper:compute_rollout_correction_and_add_to_batch
    batch.batch["old_log_probs"]
    batch.batch["rollout_log_probs"]
# Where a split sequence's images are encoded, and the group that splits it
plugin.shared_encoder | verl.models.transformers.qwen2_vl:_get_input_embeds
plugin.shared_encoder | verl.models.transformers.qwen3_vl:_get_input_embeds
    unpack_visual_output(model.visual(pixel_values, grid_thw=image_grid_thw))
    model.visual(pixel_values_videos, grid_thw=video_grid_thw)
    torch.tensor([[1, 4, 4]]
    model.visual(pixel_values, grid_thw=image_grid_thw)
plugin.shared_encoder | verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_module
    apply_monkey_patch(
    model=module,
    ulysses_sp_size=self.ulysses_sequence_parallel_size,
plugin.shared_encoder | verl.models.transformers.monkey_patch:patch_vlm_for_ulysses_input_slicing
    call_kwargs["inputs_embeds"] = slice_input_tensor(
    embed[visual_start:visual_end]
    embed[:0]
plugin.shared_encoder | verl.utils.transformers_compat:unpack_visual_output
    return visual_output.pooler_output, visual_output.deepstack_features
    visual_output.pooler_output, None
# The patch of the workers
plugin.patches | verl.utils.tensordict_utils:maybe_fix_3d_position_ids
    data["position_ids"]._ragged_idx = 2
plugin.patches | transfer_queue.storage.managers.simple_storage_manager:AsyncSimpleStorageManager._pack_field_values
    torch.nested.as_nested_tensor(values, layout=torch.jagged)
plugin.patches | verl.workers.engine_workers:TrainingWorker.train_mini_batch
plugin.patches | verl.workers.engine.base:BaseEngine.train_batch
plugin.patches | verl.workers.engine.base:BaseEngine.infer_batch
    maybe_fix_3d_position_ids(data)
# Ray: what the table of actors says of each, and what is left out of a start without a dashboard
plugin.run_watch | ray._private.state:GlobalState._gen_actor_info
    "ActorClassName":
    "Name":
    "Address":
    "OwnerAddress":
    "DeathCause": actor_table_data.death_cause
plugin.run_watch | ray._private.state:actors
    actor_id
    job_id
    actor_state_name
lib.own_ray | ray._private.node:Node.start_head_processes
    self.start_monitor()
    self.start_api_server(
lib.own_ray | ray._private.services:start_raylet
    setup_worker_path,
    os.path.join(RAY_PATH, "dashboard", "agent.py"),
    = start_ray_process(
# Checkpoints: which one is loaded; the callback comes last in a save
plugin.resume | verl.trainer.ppo.v1.trainer_base:PPOTrainer._load_checkpoint
    resume_mode == "disable"
    resume_mode == "auto"
    find_latest_ckpt_path(checkpoint_folder)
    resume_mode == "resume_path"
plugin.checkpoints | verl.trainer.ppo.v1.trainer_base:PPOTrainer._save_checkpoint
    f"global_step_{self.global_steps}"
    os.path.join(local_global_step_folder, "actor")
    "latest_checkpointed_iteration.txt"
    self.checkpoint_callback.on_save(
# A resume: what veRL restores, by which class, and what it counts of the checkpoints that it saved
plugin.patches | verl.trainer.ppo.utils:create_rl_sampler
    RandomSampler(
    SequentialSampler(
plugin.patches | verl.trainer.ppo.v1.trainer_base:PPOTrainer._load_checkpoint
    os.path.join(global_step_folder, "data.pt")
    self.train_dataloader.load_state_dict(dataloader_state_dict)
plugin.checkpoints | verl.utils.checkpoint.checkpoint_manager:BaseCheckpointManager.register_checkpoint
    self.previous_saved_paths.append(new_path)
    self.remove_previous_save_local_path(
plugin.recipe.resuming | verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.load_checkpoint
    f"model_world_size_{self.world_size}_rank_{self.rank}.pt"
    f"optim_world_size_{self.world_size}_rank_{self.rank}.pt"
    self.optimizer.load_state_dict(optimizer_state_dict)
    f"extra_state_world_size_{self.world_size}_rank_{self.rank}.pt"
    self.lr_scheduler.load_state_dict(lr_scheduler_state_dict)
plugin.recipe.resuming | verl.utils.checkpoint.fsdp_checkpoint_manager:FSDPCheckpointManager.save_checkpoint
    "huggingface"
    model_config.save_pretrained(hf_config_tokenizer_path)
# Frontier sampling: rows are fetched when they are to be played, through the dataset, whose state goes with the
# loader's; tests/plugin/test_dataset.py runs the loader
plugin.trainer_state | verl.trainer.ppo.v1.trainer_base:PPOTrainer._init_dataloader
    self.train_dataloader = StatefulDataLoader(
    num_workers=self.config.data["dataloader_num_workers"]
    create_rl_sampler(
plugin.trainer_state | verl.trainer.ppo.v1.trainer_base:PPOTrainer._fetch_one_gen_batch
    next(self.train_dataloader_it)
plugin.trainer_state | verl.trainer.ppo.v1.trainer_base:PPOTrainer._save_checkpoint
    torch.save(self.train_dataloader.state_dict()
plugin.trainer_state | torch.utils.data._utils.fetch:_MapDatasetFetcher.fetch
    self.dataset.__getitems__(possibly_batched_index)
# Loggers and metrics
plugin.run_callback | verl.utils.tracking:_TensorboardAdapter
    os.environ.get("TENSORBOARD_DIR"
plugin.step_metrics | verl.trainer.ppo.metric_utils:compute_data_metrics
    "critic/score/mean"
    "critic/rewards/mean"
    "critic/advantages/mean"
    "response_length/mean"
    "response_length/clip_ratio"
    "prompt_length/mean"
    "num_turns/mean"
plugin.step_metrics | verl.utils.debug.metrics:calculate_debug_metrics
    "training/rollout_probs_diff_max"
    "training/rollout_probs_diff_mean"
    "training/rollout_actor_probs_pearson_corr"
tools.viewer.overview.costs | verl.trainer.ppo.v1.trainer_base:PPOTrainer
    marked_timer("step",
    marked_timer("save_checkpoint",
    marked_timer("testing",
    marked_timer("gen",
    marked_timer("old_log_prob",
    marked_timer("ref",
    marked_timer("adv",
    marked_timer("update_critic",
    marked_timer("update_actor",
tools.viewer.overview.costs | verl.trainer.ppo.v1.trainer_sync
    marked_timer("update_weights",
# The CPU: what veRL calls on our server and adapter
engines.cpu.server | verl.workers.rollout.llm_server:LLMServerClient.generate
    request_id=
    prompt_ids=
    sampling_params=
    image_data=
    video_data=
engines.cpu.server | verl.workers.rollout.replica:RolloutReplica
    server.wake_up.remote(
    server.sleep.remote(
    server.abort_all_requests.remote(
    server.resume_generation.remote(
    server.clear_kv_cache.remote(
    server.release_kv_cache.remote(
    server.resume_kv_cache.remote(
    server.start_profile.remote(
    server.stop_profile.remote(
engines.cpu.adapter | verl.workers.engine_workers:ActorRolloutRefWorker.update_weights
    peft_config=peft_config, base_sync_done=True, global_steps=global_steps
# The process group of a CPU, patched; the platform is asked for the name of a backend where it is not
engines.cpu.patch | verl.utils.distributed:initialize_global_process_group_ray
    backend = backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"
engines.cpu.patch | verl.utils.torch_functional:logprobs_from_logits_v2
    logsumexp_values = torch.stack([torch.logsumexp(logit, dim=-1) for logit in logits])
engines.cpu.platform | verl.utils.device:get_nccl_backend
    get_platform().communication_backend_name()
engines.cpu.platform | verl.utils.device:is_support_ipc
    get_platform().is_ipc_supported()
engines.cpu.platform | verl.workers.rollout.vllm_rollout.bucketed_weight_transfer
    def receive_weights
    if is_support_ipc():
# What a deterministic request and a marked process rest on
plugin.agent_loop | verl.workers.rollout.vllm_rollout.vllm_async_server
    sampling_params.setdefault("seed",
lib.run_marker | verl.trainer.main_ppo:run_ppo
    OmegaConf.merge(default_runtime_env, runtime_env_kwargs)
# vLLM, patched; tests/engines/cpu/test_vllm.py runs it in the environment that has it
engines.cpu.patch | vllm._custom_ops
    _supports_onednn = bool(
engines.vllm.segments | vllm.distributed.device_communicators.shm_broadcast
    class ShmRingBuffer
    self.is_creator =
    self.shared_memory =
engines.vllm.images | vllm.multimodal.registry
    def _get_cache_type(
    def processor_cache_from_config(
    def engine_receiver_cache_from_config(
    def worker_receiver_cache_from_config(
engines.vllm.images | vllm.v1.worker.worker_base
    mm_cache.get_and_update_features(
# What its getters and controllers do by names that are replaced
desktops.osworld.pages | desktop_env.evaluators.getters.chrome
desktops.osworld.pages | desktop_env.controllers.setup
    import sync_playwright
    with sync_playwright() as p
    chromium.connect_over_cdp(
    page.goto(
# The client's providers, some of which cannot be imported without a cloud's own package
desktops.osworld.provider_patches | desktop_env.providers.aws.manager
    import signal
    signal.getsignal
desktops.osworld.provider_patches | desktop_env.providers.azure.manager
    class AzureVMManager(
# Names that we put into its modules
desktops.osworld.verdict.closed_ways | desktop_env.evaluators.metrics.chrome
    shutil.unpack_archive(pred_path, pred_folder)
desktops.osworld.verdict.closed_ways | desktop_env.evaluators.metrics.utils
    tldextract.extract(
desktops.osworld.verdict.closed_ways | desktop_env.evaluators.metrics.vlc
    librosa.load(audio_path_1)
    cv2.VideoCapture(video_path1)
desktops.osworld.verdict.closed_ways | desktop_env.evaluators.metrics
    compare_images,
desktops.osworld.verdict.closed_ways | desktop_env.evaluators.metrics.basic_os
    apps = eval(apps_str)
desktops.osworld.verdict.closed_ways | desktop_env.evaluators.metrics.vscode
    import importlib.util
    importlib.util.spec_from_file_location(
desktops.osworld.provider_patches | desktop_env.providers.vmware.provider:VMwareProvider._execute_command
    def _execute_command(
desktops.osworld.provider_patches | desktop_env.providers.docker.provider
    LOCK_TIMEOUT =
    self.client = docker.from_env()
    def _wait_for_vm_ready(self, timeout: int
""")

# Keys of our recipes that veRL's own configuration does not declare: ours, or of a mapping that veRL hands on whole.
OPEN_KEYS = (
    "algorithm.episode_weight",
    "data.tasks",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    "trainer.v1.sampler.by_mode",
    "trainer.v1.sampler.sampler_kwargs",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.rollout.engine_kwargs",
    "data.mm_processor_kwargs",
    "ray_kwargs.ray_init",
    "transfer_queue.backend.SimpleStorage",
)
