"""Recipes that cannot do what they say are refused before anything starts, in words that say what to set.

Each row is what a user might type behind a shipped recipe. Some are taken out of published training scripts: veRL's for
DAPO and for GRPO with Qwen2.5-VL, the ARPO reference's, EasyR1's in veRL's names.
"""

import importlib.util
import time
from pathlib import Path

import pytest
from omegaconf import DictConfig
from support.checkpoints import write_shards
from support.composed import compose_recipe

from arpo_verl.config import Problems
from arpo_verl.models.official_words import PACKAGE
from arpo_verl.plugin.recipe import checks
from arpo_verl.plugin.recipe.checks import check_recipe
from arpo_verl.plugin.recipe.combinations import RULES
from arpo_verl.plugin.recipe.footprint import model_shape
from arpo_verl.plugin.recipe.named import check_named
from arpo_verl.plugin.recipe.rules import Checks, Recipe, check_rules, full_name
from arpo_verl.plugin.recipe.values import check_values
from arpo_verl.tasks.loader import shipped_file

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None, reason=f"needs {PACKAGE}, whose words recipes use"
)

LIMIT_S = 5.0
FULL, ASYNC, WINDOW = "osworld_full", "osworld_full_async", "osworld_window"
CORRECTION, FSDP = "algorithm.rollout_correction", "actor.fsdp_config"
KL, QUEUE = "algorithm.use_kl_in_reward=true", "transfer_queue.backend.SimpleStorage"
SAMPLER, REWARD = "trainer.v1.sampler.custom_sampler", "reward.custom_reward_function"

# What is typed behind a recipe, and words of the refusal: by one of the package's tables, of rules, of kinds of values,
# or of names. `actor.`, `model.`, `ref.` and `rollout.` stand for their full names.
OF_FULL = [
    # Which trainer, and whether our parts are in it
    ("trainer.use_v1=false", "trainer.use_v1 must be true"),
    ("trainer.v1.trainer_mode=async", "trainer.v1.trainer_mode must be one of sync, colocate_async, separate_async"),
    ("VERL_USE_EXTERNAL_PLUGINS=none", "VERL_USE_EXTERNAL_PLUGINS must be auto, or a list with arpo_verl"),
    ("VERL_USE_EXTERNAL_PLUGINS=mine,other", "got 'mine,other'; unset it in the environment"),
    ("VLLM_PLUGINS=mine", "VLLM_PLUGINS must be unset, or a list with arpo_verl"),
    (
        "rollout.tensor_model_parallel_size=4 trainer.n_gpus_per_node=2 trainer.nnodes=8",
        "mm_processor_cache_type must be lru with an engine of 4 GPUs, more than a node has",
    ),
    ("rollout.data_parallel_size=2", "mm_processor_cache_type must be lru with rollout.data_parallel_size=2"),
    ("rollout.agent.default_agent_loop=tool_agent", "default_agent_loop must be gui_agent"),
    ("rollout.agent.agent_loop_manager_class=my.Manager", "when a rollout worker dies, got 'my.Manager'"),
    ("trainer.v1.sampler.custom_sampler.path=null", "veRL's own samplers replay nothing"),
    ("custom_reward_function.path=mine.py", "the V1 trainer reads only reward.custom_reward_function.path"),
    ("reward_model.reward_manager=dapo", "got 'dapo'; set reward.reward_manager.name"),
    # What a run does, where it begins and ends
    ("trainer.val_only=true trainer.val_before_train=false", "val_before_train must be true with trainer.val_only"),
    ("trainer.resume_mode=autp", "got 'autp'; did you mean auto?"),
    ("trainer.resume_mode=resume_path", "resume_from_path must be the folder global_step_N of a checkpoint"),
    (
        "trainer.resume_mode=resume_path trainer.resume_from_path=checkpoints/global_step_9",
        "got 'checkpoints/global_step_9'; name one that is here, or set trainer.resume_mode=auto",
    ),
    ("trainer.resume_from_path=checkpoints/global_step_3", "trainer.resume_mode must be resume_path with"),
    ("actor.checkpoint.save_contents=[hf_model]", "it would go on with the weights that it began with"),
    ("actor.checkpoint.save_contents=[model,optimiser,extra]", "must be a list of model, optimizer, extra, hf_model"),
    ("actor.checkpoint.async_save=true", "veRL would never note which checkpoint to resume from"),
    ("trainer.total_epochs=0", "trainer.total_epochs must be 1 or more"),
    ("trainer.total_training_steps=500", "at most 240, the steps of trainer.total_epochs=15"),
    ("trainer.critic_warmup=10", "trainer.critic_warmup must be 0 without a critic"),
    ("trainer.logger=[console,wandbb]", "trainer.logger must be of console, file, tensorboard, wandb"),
    # Groups, advantages and losses
    ("rollout.n=1", "rollout.n must be 2 or more with replay.enable=true"),
    (
        "rollout.n=1 replay.enable=false algorithm.adv_estimator=rloo_vectorized",
        "a group of one has nothing to compare",
    ),
    (
        "rollout.n=1 +baseline=dynamic_sampling algorithm.adv_estimator=reinforce_plus_plus",
        "a group of one is never filtered",
    ),
    ("algorithm.filter_groups.enable=true algorithm.filter_groups.metric=acc", "got 'acc'; set it to reward"),
    ("algorithm.filter_groups.enable=true algorithm.filter_groups.metric=overall", "metric must be reward, or one of"),
    ("algorithm.filter_groups.enable=true reward.reward_model.enable=true", "which scores after groups are filtered"),
    ("algorithm.adv_estimator=remax", "the V1 trainer does not compute what remax needs"),
    ("algorithm.adv_estimator=gae critic.enable=false", "which needs the critic's values"),
    (f"{CORRECTION}.bypass_mode=true", "bypass_mode must be false: the V1 trainer uses the rollout's log-probs"),
    (
        f"{CORRECTION}.rollout_is=token rollout.calculate_log_probs=false",
        "rollout.calculate_log_probs must be true with",
    ),
    (f"{CORRECTION}.rollout_is=tokens", "got 'tokens'; did you mean token?"),
    (f"{CORRECTION}.rollout_rs=seq_mean_k1", "rollout_rs_threshold must be given with"),
    ("actor.use_kl_loss=true actor.kl_loss_type=low_var", "got 'low_var'; did you mean low_var_kl"),
    ("actor.clip_ratio=0.1", "the loss reads actor.clip_ratio_low=0.2 and actor.clip_ratio_high=0.3 instead"),
    ("actor.clip_ratio_c=1.0", "clip_ratio_c must be more than 1, got 1.0"),
    ("actor.grad_clip=0.5", "veRL's engines do not read it, got 0.5; set actor_rollout_ref.actor.optim.clip_grad"),
    ("actor.freeze_vision_tower=true", "freeze_vision_tower must be false: veRL 0.9.1's FSDP trainer"),
    ("rollout.temperature=0", "rollout.temperature must be more than 0 in training"),
    ("actor.policy_loss.loss_mode=bypass_mode", "does not pass algorithm.rollout_correction to this one"),
    ("algorithm.episode_weight=equal actor.loss_agg_mode=token-sum", "token-mean with algorithm.episode_weight=equal"),
    ("data.tasks.sampling=frontier data.dataloader_num_workers=8", "must be 0 with data.tasks.sampling=frontier"),
    # Batches
    ("data.train_batch_size=1024", "data.train_batch_size must be at most 256, the rows of data.train_files"),
    ("data.gen_batch_size=48", "gen_batch_size must be a divisor of data.train_batch_size=16"),
    ("trainer.nnodes=3", "divides by 6, the number of GPUs"),
    ("actor.ppo_micro_batch_size_per_gpu=10", "must be a divisor of 16, the rows of an update on one GPU"),
    ("rollout.log_prob_micro_batch_size_per_gpu=20", "log_prob_micro_batch_size_per_gpu must be a divisor of 16"),
    (
        "actor.ppo_micro_batch_size=16 actor.ppo_micro_batch_size_per_gpu=null",
        "set it instead of actor_rollout_ref",
    ),
    ("rollout.log_prob_use_dynamic_bsz=true", "must be False, like actor_rollout_ref.actor.use_dynamic_bsz"),
    ("actor.use_dynamic_bsz=true actor.ppo_max_token_len_per_gpu=8192", "at least 65536 when multiplied by the 4 GPUs"),
    # GPUs and engines
    ("actor.fsdp_config.ulysses_sequence_parallel_size=7", "must be one of 1, 2, 4, the sizes that divide this"),
    (
        "actor.use_kl_loss=true ref.fsdp_config.ulysses_sequence_parallel_size=8",
        "ref.fsdp_config.ulysses_sequence_parallel_size must be one of 1, 2, 4",
    ),
    ("model.use_remove_padding=false", "use_remove_padding must be true with"),
    ("actor.fsdp_config.fsdp_size=5", "fsdp_size must be -1 or a divisor of 16"),
    (
        "actor.strategy=fsdp actor.fsdp_config.offload_policy=true",
        "offload_policy must be false with actor.strategy=fsdp",
    ),
    ("model.use_fused_kernels=true", "mixed torch.Tensor and DTensor"),
    (
        "+policy=qwen3_vl model.use_fused_kernels=true model.fused_kernel_options.impl_backend=triton",
        "use_fused_kernels must be false",
    ),
    ("rollout.tensor_model_parallel_size=3", "the 16 GPUs that train make whole engines of 3 each"),
    ("rollout.tensor_model_parallel_size=8", "a divisor of the attention heads: this policy has 28"),
    ("rollout.max_model_len=32768", "max_model_len must be at least 65536"),
    ("rollout.enable_chunked_prefill=false", "vLLM does not start otherwise"),
    ("rollout.name=hf", "rollout.name must be one of vllm, sglang"),
    ("data.max_prompt_length=64000 data.max_response_length=8192", "max_model_len must be at least 72192"),
    # The asynchronous trainers
    ("reward.reward_model.enable_resource_pool=true", "reward_model.nnodes must be 1 or more"),
    # The rollout engine
    ("rollout.gpu_memory_utilization=1.5", "must be a number of more than 0 and at most 1, got 1.5"),
    ("rollout.gpu_memory_utilization=0", "more than 0"),
    ("rollout.dtype=float17", "got 'float17'; did you mean float16?"),
    ("rollout.top_p=0", "top_p must be a number of more than 0"),
    ("rollout.top_p=2", "at most 1 or null, got 2"),
    ("rollout.top_k=-5", "top_k must be a number of at least -1"),
    ("rollout.val_kwargs.top_p=0", "val_kwargs.top_p must be"),
    ("rollout.val_kwargs.temperature=-1", "val_kwargs.temperature must be"),
    ("rollout.val_kwargs.n=0", "val_kwargs.n must be a number of at least 1, got 0"),
    ("rollout.val_kwargs.do_sample=false", "the V1 trainer reads only the temperature, and would sample"),
    ("rollout.ignore_eos=true", "each reply would go on until gui_agent.max_reply_tokens"),
    ("rollout.do_sample=false", "rollout.do_sample must be true: nothing here reads it, got False; set actor_"),
    ("rollout.repetition_penalty=1.1", "repetition_penalty must be 1.0: nothing here reads it, got 1.1"),
    ("rollout.trace.backend=weave", "rollout.trace.backend must be null: nothing here reads it"),
    ("rollout.multi_turn.max_assistant_turns=5", "set gui_agent.max_steps"),
    ("rollout.multi_turn.tool_config_path=tools.yaml", "tool_config_path must be null"),
    ("rollout.checkpoint_manager_class=mine.Manager", "checkpoint_manager_class must be null"),
    ("actor.use_torch_compile=false", "set actor_rollout_ref.actor.fsdp_config.use_torch_compile"),
    ("actor.use_fused_kernels=true", "must be False, like actor_rollout_ref.model.use_fused_kernels: only that"),
    ("actor.use_remove_padding=false", "leave it out, and set actor_rollout_ref.model.use_remove_padding"),
    ("actor.use_rollout_log_probs=true", "use_rollout_log_probs must be false"),
    ("model.lora.rank=32", "FSDP would train all weights, and the engine would wait for an adapter"),
    ("model.lora_adapter_path=somebody/adapter", "veRL would not load the adapter, and would train all weights"),
    ("rollout.max_num_seqs=0", "max_num_seqs must be"),
    ("rollout.max_num_batched_tokens=0", "max_num_batched_tokens must be"),
    ("rollout.agent.num_workers=0", "agent.num_workers must be"),
    ("rollout.checkpoint_engine.update_weights_bucket_megabytes=0", "update_weights_bucket_megabytes must be"),
    ("rollout.logprobs_mode=raw_logits", "must be one of processed_logprobs, raw_logprobs"),
    ("rollout.scheduling_policy=lifo", "must be one of fcfs, priority"),
    ("rollout.mode=asynchronous", "rollout.mode must be one of async"),
    ("rollout.response_length=1024", "response_length must be data.max_response_length=60416: episodes are"),
    ("rollout.prompt_length=100", "leave it out, and set data.max_prompt_length"),
    (
        "trainer.nnodes=4 trainer.n_gpus_per_node=6 rollout.tensor_model_parallel_size=4",
        "engines of 4 GPUs divide a node of trainer.n_gpus_per_node=6",
    ),
    ("trainer.nnodes=8 trainer.n_gpus_per_node=3 rollout.tensor_model_parallel_size=4", "divide a node of trainer"),
    # The policy, and its optimizer
    ("model.lora_rank=-4", "model.lora_rank must be a number of at least 0"),
    ("model.lora_rank=1000", "model.lora_rank must be a number of at most 512"),
    ("model.lora_rank=32 model.lora_alpha=0", "model.lora_alpha must be a number of more than 0"),
    ("actor.fsdp_config.model_dtype=int8", "model_dtype must be one of"),
    ("actor.fsdp_config.mixed_precision.param_dtype=bf17", "param_dtype must be one of"),
    ("actor.fsdp_config.forward_only=true", "forward_only must be false: such a policy cannot be trained"),
    ("actor.optim.lr_scheduler_type=linear", "lr_scheduler_type must be one of constant, cosine, got 'linear'"),
    ("actor.optim.lr_warmup_steps_ratio=2", "lr_warmup_steps_ratio must be"),
    ("actor.optim.clip_grad=0", "clip_grad must be a number of more than 0, got 0"),
    ("actor.optim.clip_grad=null", "clip_grad must be a number of more than 0, got None"),
    ("actor.ppo_epochs=0", "ppo_epochs must be a number of at least 1"),
    ("actor.use_kl_loss=true actor.kl_loss_coef=-1", "kl_loss_coef must be a number of at least 0"),
    ("actor.clip_ratio_low=-0.1", "clip_ratio_low must be"),
    ("actor.loss_scale_factor=0", "loss_scale_factor must be"),
    ("actor.use_prefix_grouper=true", "use_prefix_grouper must be false: nothing here reads it"),
    # Advantages, the critic, a reward model
    ("algorithm.use_kl_in_reward=true algorithm.kl_penalty=low_var", "got 'low_var'; did you mean low_var_kl"),
    ("algorithm.use_kl_in_reward=true algorithm.kl_ctrl.type=fix", "kl_ctrl.type must be one of fixed, adaptive"),
    (
        "algorithm.use_kl_in_reward=true algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.horizon=0",
        "kl_ctrl.horizon must be",
    ),
    ("algorithm.use_pf_ppo=true", "would give their advantages to other rows"),
    ("critic.enable=true", "replay_grpo, which does not use a critic's values"),
    ("reward.reward_model.enable=true", "reward_model.model_path must be given"),
    ("rollout.enable_rollout_routing_replay=true", "stored successes do not have the data for it"),
    ("distillation.enabled=true", "set replay.enable=false"),
    # The run, and its queue
    ("trainer.total_training_steps=0", "total_training_steps must be a number of at least 1 or null, got 0"),
    ("trainer.total_training_steps=-5", "got -5"),
    ("trainer.checkpoint_callback_class=null", "checkpoints would not contain the store of successes"),
    ("data.custom_cls.path=null", "veRL's own dataset cannot read task files"),
    ("data.val_batch_size=-1", "data.val_batch_size must be"),
    ("data.dataloader_num_workers=-1", "data.dataloader_num_workers must be"),
    (f"{QUEUE}.num_data_storage_units=0", "num_data_storage_units must be"),
    (f"{QUEUE}.total_storage_size=100", "total_storage_size must be at least the rows of a step"),
    # Words in the place of a number, or of true and false
    ("trainer.val_only=flase", "trainer.val_only must be true or false, got 'flase'"),
    ("rollout.temperature=hot", "rollout.temperature must be a number, got 'hot'"),
    ("actor.use_dynamic_bsz=maybe", "actor.use_dynamic_bsz must be true or false"),
    ("actor.optim.lr=fast", "actor.optim.lr must be a number"),
    # What is named
    ("reward.custom_reward_function.path=nofile.py", "a Python file that is here, or pkg://MODULE"),
    ("reward.custom_reward_function.name=compute", "did you mean compute_score?"),
    ("reward.custom_reward_function.path=mine.py", "must be a name of mine.py, got 'compute_score'"),
    ("reward.custom_reward_function.path=pkg://no_such.module", "must be a module that can be imported"),
    ("data.custom_cls.name=Dataset", "data.custom_cls.name must be a name of"),
    ("trainer.v1.sampler.custom_sampler.path=mine.py", "must be a name of mine.py, got 'ReplaySampler'"),
    ("trainer.checkpoint_callback_class=arpo_verl.plugin.checkpoints.Callback", "must be a name of"),
    ("trainer.checkpoint_callback_class=no.such.Callback", "must be a class by its module"),
    ("model.external_lib=no_such_module", "external_lib must be a module that can be imported"),
    ("actor.optim.optimizer_impl=no.such", "optimizer_impl must be a module that can be imported"),
    ("rollout.agent.agent_loop_config_path=loops.yaml", "agent_loop_config_path must be a path that is here"),
    ("model.lora_adapter_path=./adapter", "lora_adapter_path must be a path that is here"),
    (
        "trainer.logger=[file,trackio]",
        "installed and logged in, got 'trackio'; pip install trackio, or leave it out",
    ),
    ("trainer.logger=vemlp_wandb", "got 'vemlp_wandb'; pip install volcengine_ml_platform, set VOLC_ACCESS"),
    ("trainer.logger=[wandb] HOME=/nobody", "got 'wandb'; pip install wandb, set WANDB_API_KEY, or leave it out"),
    ("trainer.logger=swanlab HOME=/nobody", "got 'swanlab'; pip install swanlab, set SWANLAB_API_KEY, or leave"),
    (
        "data.tasks.sampling=frontier trainer.v1.sampler.custom_sampler.path=mine.py "
        "trainer.v1.sampler.custom_sampler.name=MySampler",
        "custom_sampler.name must be ReplaySampler or",
    ),
    (
        "data.tasks.sampling=frontier data.custom_cls.path=mine.py data.custom_cls.name=MyDataset",
        "data.custom_cls.name must be TaskDataset with data.tasks.sampling",
    ),
    (
        "data.tasks.sampling=frontier rollout.n=1 replay.enable=false algorithm.adv_estimator=reinforce_plus_plus",
        "rollout.n must be 2 or more with data.tasks.sampling=frontier",
    ),
    (
        "algorithm.episode_weight=equal actor.loss_agg_mode=seq-mean-token-mean",
        "must be token-mean with algorithm.episode_weight=equal",
    ),
]
OF_ASYNC = [
    # The asynchronous trainers
    ("data.train_batch_size=32", "data.train_batch_size must be 16 with trainer_mode=separate_async"),
    ("rollout.nnodes=0", "rollout.nnodes must be 1 or more with trainer_mode=separate_async"),
    ("rollout.checkpoint_engine.backend=naive", "naive cannot send weights to another node"),
    ("trainer.v1.trainer_mode=colocate_async", "rollout.nnodes must be 0 with trainer_mode=colocate_async"),
    ("actor.fsdp_config.param_offload=true", "all but the last would be lost"),
    ("actor_rollout_ref.hybrid_engine=false", "hybrid_engine must be true"),
    ("trainer.v1.sampler.max_off_policy_threshold=0", "a whole number from 1, or null for no bound, got 0"),
    ("trainer.v1.sampler.max_off_policy_strategy=skip", "must be one of drop, wait, got 'skip'"),
    ("reward.reward_model.enable=true", "generation never pauses to make room for a reward model"),
    # The rollout engine
    ("rollout.n_gpus_per_node=6 rollout.tensor_model_parallel_size=4", "a node of rollout.n_gpus_per_node=6"),
]
OF_WINDOW = [
    # Episodes of several rows
    ("algorithm.adv_estimator=rloo", "counts each row as a rollout of the group"),
    ("critic.enable=true", "critic.enable must be false with episodes of several rows"),
    ("actor.loss_agg_mode=seq-mean-token-sum", "a mean over sequences counts each row as an episode"),
    ("algorithm.adv_estimator=rloo", "adv_estimator must be replay_grpo or grpo with"),
    ("rollout.enable_rollout_routing_replay=true", "enable_rollout_routing_replay must be false"),
    ("distillation.enabled=true", "distillation.enabled must be false with episodes of several rows"),
    ("actor.loss_agg_mode=seq-mean-token-mean", "loss_agg_mode must be token-mean or token-sum"),
    ("trainer.v1.sampler.custom_sampler.name=Other", "must be ReplaySampler or ReplaySamplerAsync with"),
]

# Recipe, what is typed behind it, and words of the refusal, which another check makes or veRL itself.
ELSEWHERE = [
    (
        FULL,
        "algorithm.filter_groups.enable=true algorithm.filter_groups.metric=null",
        "filter_groups.metric must be the name of a reward",
    ),
    (FULL, f"TMPDIR=/{'x' * 130}", "TMPDIR must be at most 39 bytes long, since Ray makes sockets below it"),
    (FULL, "algorithm.adv_estimator=replay_grop", "did you mean replay_grpo?"),
    (FULL, "actor.policy_loss.loss_mode=default", "policy_loss.loss_mode must be one of"),
    (FULL, "actor.loss_agg_mode=seq-mean", "Invalid loss_agg_mode: seq-mean"),
    (FULL, "actor.ppo_mini_batch_size=32", "train_batch_size (16) must be >= actor.ppo_mini_batch_size (32)"),
    (
        FULL,
        "actor.ppo_micro_batch_size_per_gpu=null",
        "[actor] Please set at least one of 'actor.ppo_micro_batch_size'",
    ),
    (FULL, "actor.use_kl_loss=true ref.log_prob_micro_batch_size_per_gpu=null", "[actor_rollout_ref.ref] Please set"),
    (FULL, "rollout.mode=sync", "Rollout mode 'sync' has been removed"),
    (FULL, "rollout.pipeline_model_parallel_size=2", "not implemented pipeline_model_parallel_size > 1"),
    (FULL, "rollout.limit_images=10", "limit_images must be at least the 15 screenshots of an episode, got 10"),
    (FULL, "data.max_prompt_length=1024", "the tokens of the first turn: a screenshot (2691) and the prompt"),
    (
        ASYNC,
        "trainer.v1.separate_async.hybrid_rollout.switch_threshold_ratio=2",
        "switch_threshold_ratio must be in (0, 1]",
    ),
]

# Recipe, and what is typed behind it. Values that have nothing to do with each other share a row.
SOUND = [
    *((FULL, f"+baseline={name}") for name in ("grpo", "dynamic_sampling", "arpo_dynamic")),
    *((FULL, f"+policy={name}") for name in ("qwen25_vl", "qwen3_vl")),
    *((FULL, f"+context={name}") for name in ("window", "segments")),
    (WINDOW, "replay.enable=false algorithm.adv_estimator=grpo"),
    (FULL, "VLLM_PLUGINS=other rollout.engine_kwargs.vllm.mm_processor_cache_type=lru"),
    (ASYNC, "trainer.v1.trainer_mode=colocate_async trainer.nnodes=2 rollout.nnodes=0"),
    (
        ASYNC,
        "actor_rollout_ref.hybrid_engine=false VERL_LOGGING_LEVEL=WARNING rollout.n_gpus_per_node=4 "
        "rollout.tensor_model_parallel_size=4 trainer.v1.sampler.max_off_policy_threshold=null "
        "trainer.v1.sampler.max_off_policy_strategy=wait",
    ),
    (
        FULL,
        "VERL_USE_EXTERNAL_PLUGINS=other,arpo_verl VLLM_PLUGINS=other,arpo_verl trainer.val_only=true "
        "trainer.logger=console critic.enable=false "
        "rollout.gpu_memory_utilization=1 rollout.dtype=auto rollout.top_p=1 rollout.top_k=0 actor.optim.lr=0 "
        "actor.loss_scale_factor=100 model.lora_rank=0 model.lora_alpha=0 data.seed=7 data.val_batch_size=0 "
        f"algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.horizon=0 {QUEUE}.total_storage_size=null",
    ),
    (
        FULL,
        "VERL_USE_EXTERNAL_PLUGINS=none VERL_USE_EXTERNAL_MODULES=arpo_verl.plugin trainer.resume_mode=disable "
        "actor.checkpoint.save_contents=[hf_model] trainer.total_training_steps=240 trainer.logger=[console,wandb] "
        "WANDB_MODE=offline "
        f"rollout.top_k=50 rollout.top_p=0.95 rollout.logprobs_mode=raw_logprobs {FSDP}.model_dtype=bfloat16 "
        "model.lora_rank=32 actor.optim.lr=1e-5 actor.optim.lr_scheduler_type=cosine actor.optim.min_lr_ratio=0.1 "
        "critic.enable=null data.val_batch_size=16 data.dataloader_num_workers=4",
    ),
    (
        FULL,
        "trainer.resume_mode=resume_path trainer.resume_from_path=checkpoints/global_step_3 "
        "actor.checkpoint.load_contents=[model] trainer.save_freq=-1 trainer.test_freq=-1 rollout.val_kwargs.n=4 "
        "rollout.val_kwargs.temperature=0 rollout.max_num_seqs=64 rollout.max_num_batched_tokens=8192 "
        "actor.optim.lr_warmup_steps=1000 actor.clip_ratio_low=0.2 actor.clip_ratio_high=0.28 actor.clip_ratio_c=10.0 "
        f"{KL} algorithm.kl_ctrl.kl_coef=0.01 algorithm.kl_penalty=kl+ {QUEUE}.num_data_storage_units=1",
    ),
    (
        FULL,
        f"trainer.total_training_steps=3 actor.checkpoint.save_contents=[model] {CORRECTION}.rollout_is=token "
        f"{CORRECTION}.rollout_is_threshold=0.5_2.0 rollout.val_kwargs.do_sample=false "
        "rollout.val_kwargs.temperature=0 actor.optim.lr_warmup_steps_ratio=0.03 actor.clip_ratio_low=0 "
        f"actor.clip_ratio_high=10 {KL} "
        "algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.horizon=1000 model.external_lib=json "
        f"{REWARD}.path=mine.py {REWARD}.name=my_reward",
    ),
    (
        FULL,
        "trainer.total_training_steps=1 actor.checkpoint.save_contents=[model] "
        f"actor.checkpoint.load_contents=[model,optimizer,extra] {CORRECTION}.rollout_rs=seq_mean_k3 "
        f"{CORRECTION}.rollout_rs_threshold=0.01 actor.use_kl_loss=true actor.kl_loss_coef=0.01 "
        "actor.kl_loss_type=low_var_kl actor.clip_ratio=0.28 actor.clip_ratio_low=0.28 actor.clip_ratio_high=0.28 "
        "data.gen_batch_size=8 rollout.repetition_penalty=1 model.external_lib=[json,math] "
        f"{REWARD}.path=file://mine.py {REWARD}.name=my_reward",
    ),
    (
        FULL,
        "trainer.total_training_steps=null actor.checkpoint.save_contents=[model,optimizer,extra,hf_model] "
        "rollout.n=16 actor.use_kl_loss=true actor.kl_loss_coef=0 actor.use_dynamic_bsz=true actor.grad_clip=0.5 "
        "actor.optim.clip_grad=0.5 algorithm.filter_groups.enable=true algorithm.filter_groups.metric=success "
        f"data.gen_batch_size=48 {REWARD}.path=null",
    ),
    (
        FULL,
        "algorithm.filter_groups.enable=true algorithm.filter_groups.metric=mine trainer.val_before_train=1 "
        "data.max_response_length=50000 model.lora_rank=32 model.lora_alpha=64 actor.loss_scale_factor=null "
        f"actor.ppo_epochs=2 {REWARD}.path=mine.py {REWARD}.name=my_reward",
    ),
    (
        FULL,
        "algorithm.adv_estimator=rloo replay.enable=false actor.policy_loss.loss_mode=gspo "
        "actor.loss_agg_mode=seq-mean-token-mean trainer.checkpoint_callback_class=null distillation.enabled=true "
        f"{REWARD}.path=anything.py {REWARD}.name=any",
    ),
    (FULL, f"algorithm.adv_estimator=mine {SAMPLER}.path=sampler.py {REWARD}.path=mine.py {REWARD}.name=sqrt"),
    (FULL, f"{SAMPLER}.path=mine.py {SAMPLER}.name=MySampler data.custom_cls.path=mine.py data.custom_cls.name=Mine"),
    (FULL, "rollout.n=1 replay.enable=false algorithm.adv_estimator=reinforce_plus_plus"),
    (FULL, "rollout.n=1 +baseline=grpo"),
    (FULL, "trainer.nnodes=4 algorithm.episode_weight=equal"),
    (
        FULL,
        "trainer.nnodes=4 trainer.n_gpus_per_node=6 rollout.tensor_model_parallel_size=2 actor.ppo_mini_batch_size=12 "
        "data.train_batch_size=24",
    ),
    (
        FULL,
        "trainer.nnodes=8 trainer.n_gpus_per_node=2 rollout.tensor_model_parallel_size=4 rollout.max_model_len=131072 "
        "actor.ulysses_sequence_parallel_size=2 rollout.engine_kwargs.vllm.mm_processor_cache_type=lru",
    ),
    (
        FULL,
        "trainer.nnodes=16 trainer.n_gpus_per_node=1 rollout.tensor_model_parallel_size=1 "
        "rollout.enable_chunked_prefill=false rollout.max_num_batched_tokens=65536",
    ),
    (
        FULL,
        "rollout.n_gpus_per_node=6 rollout.tensor_model_parallel_size=4 actor.ppo_micro_batch_size_per_gpu=2 "
        f"rollout.log_prob_micro_batch_size_per_gpu=4 {FSDP}.fsdp_size=8",
    ),
    (
        FULL,
        "actor.strategy=fsdp actor.use_fused_kernels=true model.use_fused_kernels=true actor.use_torch_compile=false "
        f"{FSDP}.use_torch_compile=false",
    ),
    (FULL, "+policy=qwen3_vl model.use_fused_kernels=true"),
    (
        FULL,
        "model.lora_rank=32 model.lora_adapter_path=somebody/adapter actor.use_kl_loss=true rollout.limit_images=15 "
        f"{FSDP}.mixed_precision.param_dtype=bf16 model.hf_config_path=./",
    ),
    (FULL, "trainer.v1.trainer_mode=colocate_async"),
    (
        FULL,
        "data.tasks.sampling=frontier "
        "trainer.checkpoint_callback_class=arpo_verl.plugin.checkpoints.ReplayCheckpointCallback",
    ),
]

# What veRL's own script for DAPO says, on our recipe: all that cannot be is told at once.
DAPO = (
    "algorithm.adv_estimator=grpo algorithm.filter_groups.enable=true algorithm.filter_groups.metric=acc "
    "algorithm.filter_groups.max_num_gen_batches=10 data.train_batch_size=512 data.gen_batch_size=1536 "
    "data.max_prompt_length=2048 data.max_response_length=20480 rollout.n=16 actor.ppo_mini_batch_size=32 "
    "actor.use_dynamic_bsz=true actor.ppo_max_token_len_per_gpu=22528 actor.clip_ratio_low=0.2 "
    "actor.clip_ratio_high=0.28 actor.clip_ratio_c=10.0 actor.grad_clip=1.0 actor.ulysses_sequence_parallel_size=8 "
    "rollout.tensor_model_parallel_size=4 reward_model.reward_manager=dapo trainer.total_epochs=1"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Where a user types: with a checkpoint, and modules of his own."""
    folder = tmp_path_factory.mktemp("place")
    write_shards(folder / "checkpoints" / "global_step_3", ranks=16)
    own = "from math import sqrt\nclass MySampler: ...\nclass Mine: ...\ndef my_reward(): ...\n"
    (folder / "mine.py").write_text(own)
    (folder / "sampler.py").write_text("from arpo_verl.plugin.sampler import ReplaySampler\n")
    (folder / "anything.py").write_text("from math import *\n")
    return folder


@pytest.fixture
def compose(monkeypatch, place):
    """A recipe with these words, which are options or variables of the environment."""
    for name in (
        "VERL_USE_EXTERNAL_PLUGINS",
        "VERL_USE_EXTERNAL_MODULES",
        "VERL_LOGGING_LEVEL",
        "VLLM_PLUGINS",
        "RAY_ADDRESS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(checks, "check_provider", lambda _: None)  # Docker and its virtual machine
    monkeypatch.setattr(checks, "RAY_CLUSTER_FILE", place / "none")
    monkeypatch.chdir(place)
    tasks = [f"data.{split}_files={shipped_file('dialog-confirm-yes')}" for split in ("train", "val")]

    def compose_with(recipe: str, words: str) -> DictConfig:
        overrides = []
        for word in words.split():
            name, _, value = word.partition("=")
            if name.isupper():
                monkeypatch.setenv(name, value)
            else:
                overrides.append(f"++{full_name(word)}" if "." in name else word)
        return compose_recipe(recipe, *tasks, "+data.tasks.repeat=256", *overrides)

    return compose_with


def problems_of(check, *args) -> list[str]:
    found = Problems()
    with found.gather():
        check(*args)
    return [str(error) for error in found.errors]


def in_tables(config: DictConfig) -> None:
    """What a recipe's tables find; what veRL would make of its values takes ten times as long."""
    found = Checks()
    found.run(check_values, config)
    found.run(check_named, config)
    found.run(check_rules, RULES, Recipe(config, model_shape(config.actor_rollout_ref.model.path)))
    found.raise_all()


@pytest.mark.parametrize(
    ("recipe", "words", "says"),
    [
        *((FULL, *row) for row in OF_FULL),
        *((ASYNC, *row) for row in OF_ASYNC),
        *((WINDOW, *row) for row in OF_WINDOW),
    ],
)
def test_a_recipe_that_cannot_do_what_it_says_is_refused(recipe, words, says, compose):
    problems = problems_of(in_tables, compose(recipe, words))
    assert any(says in problem for problem in problems), problems


@pytest.mark.parametrize(("recipe", "words", "says"), ELSEWHERE)
def test_so_is_one_that_another_check_refuses(recipe, words, says, compose):
    problems = problems_of(check_recipe, compose(recipe, words))
    assert any(says in problem for problem in problems), problems


@pytest.mark.parametrize(("recipe", "words"), SOUND)
def test_a_sound_recipe_passes(recipe, words, compose):
    assert problems_of(check_recipe, compose(recipe, words)) == []


def test_all_that_is_wrong_with_a_published_script_is_told_at_once_and_within_seconds(compose):
    config = compose(FULL, DAPO)
    problems_of(check_recipe, config)  # imports what the trainer's process has imported
    begin = time.thread_time()
    problems = problems_of(check_recipe, config)
    assert time.thread_time() - begin < LIMIT_S
    for says in (
        "filter_groups.metric must be reward",
        "data.train_batch_size must be at most 256",
        "reads only reward.reward_manager.name",
        "data.max_prompt_length must be at least",
        "ulysses_sequence_parallel_size must be one of 1, 2, 4",
    ):
        assert any(says in problem for problem in problems), (says, problems)


def test_another_engine_is_refused_alone_since_no_other_check_knows_its_sections(compose):
    (problem,) = problems_of(check_recipe, compose(FULL, "model_engine=megatron"))
    assert problem.startswith("model_engine must be dp, which is FSDP")
    assert problem.endswith("got 'megatron'; leave it out")
