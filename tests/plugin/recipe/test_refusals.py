"""Recipes that veRL refuses, and those that would train something wrong in silence, are refused before anything starts.

Each row is what a user might type behind a shipped recipe. Some are taken out of published training scripts: veRL's for
DAPO and for GRPO with Qwen2.5-VL, the ARPO reference's, EasyR1's in veRL's names.
"""

import importlib.util
import time
from pathlib import Path

import pytest
from omegaconf import DictConfig
from support.composed import compose_recipe

from arpo_verl.agent.models.official_words import PACKAGE
from arpo_verl.lib.config import Problems
from arpo_verl.plugin.recipe import checks, silent
from arpo_verl.plugin.recipe.checks import check_recipe
from arpo_verl.plugin.recipe.options import Recipe, full_name
from arpo_verl.plugin.recipe.silent import check_silent
from arpo_verl.tasks.loader import shipped_file

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None, reason=f"needs {PACKAGE}, whose words recipes use"
)

LIMIT_S = 5.0
FULL, ASYNC, WINDOW = "osworld_full", "osworld_full_async", "osworld_window"
CORRECTION, FSDP = "algorithm.rollout_correction", "actor.fsdp_config"
KL, QUEUE = "algorithm.use_kl_in_reward=true", "transfer_queue.backend.SimpleStorage"
SAMPLER, REWARD = "trainer.v1.sampler.custom_sampler", "reward.custom_reward_function"
SPLIT_IMAGES = "rollout.engine_kwargs.vllm.limit_mm_per_prompt.image"

# What is typed behind a recipe, and words of the refusal. `actor.`, `model.`, `ref.` and `rollout.` stand for their
# full names.
SILENT_IN_FULL = [
    # Which trainer, and whether our parts are in it
    ("trainer.use_v1=false", "trainer.use_v1 must be true"),
    ("VERL_USE_EXTERNAL_PLUGINS=none", "VERL_USE_EXTERNAL_PLUGINS must be auto, or a list with arpo_verl"),
    ("VERL_USE_EXTERNAL_PLUGINS=mine,other", "got 'mine,other'; unset it in the environment"),
    ("VERL_USE_EXTERNAL_PLUGINS=auto,other", "got 'auto,other'; unset it in the environment"),
    ("VERL_USE_EXTERNAL_PLUGINS=", "got ''; unset it in the environment"),
    ("VLLM_PLUGINS=mine", "VLLM_PLUGINS must be unset, or a list with arpo_verl"),
    (
        "rollout.tensor_model_parallel_size=4 trainer.n_gpus_per_node=2 trainer.nnodes=8",
        "mm_processor_cache_type must be lru with an engine of 4 GPUs",
    ),
    ("rollout.agent.default_agent_loop=tool_agent", "default_agent_loop must be gui_agent"),
    ("trainer.v1.sampler.custom_sampler.path=null", "veRL's own samplers replay nothing"),
    ("trainer.checkpoint_callback_class=null", "checkpoints would not contain the store of successes"),
    ("rollout.disaggregation.enabled=true", "disaggregation.enabled must be false"),
    # What nothing reads
    ("custom_reward_function.path=mine.py", "nothing here reads it, got 'mine.py'; set reward.custom_reward_function"),
    ("reward_model.reward_manager=dapo", "got 'dapo'; write what it does into reward.custom_reward_function"),
    ("reward.reward_manager.name=dapo", 'name must be "naive": nothing here reads it'),
    ("reward.reward_manager.source=importlib", 'source must be "register": nothing here reads it'),
    ("reward.reward_model.enable=true", "its scores would take the place of the desktops' verdicts"),
    ("data.apply_chat_template_kwargs.enable_thinking=false", "set them in actor_rollout_ref.model.custom_chat_"),
    ("actor.clip_ratio=0.1", "the loss reads actor.clip_ratio_low=0.2 and actor.clip_ratio_high=0.3 instead"),
    ("actor.grad_clip=0.5", "veRL's engines do not read it, got 0.5; set actor_rollout_ref.actor.optim.clip_grad"),
    ("actor.freeze_vision_tower=true", "freeze_vision_tower must be false: nothing here reads it"),
    ("rollout.do_sample=false", "rollout.do_sample must be true: nothing here reads it, got False; set actor_"),
    ("rollout.repetition_penalty=1.1", "repetition_penalty must be 1: nothing here reads it, got 1.1"),
    ("rollout.multi_turn.max_assistant_turns=5", "set gui_agent.max_steps"),
    ("rollout.multi_turn.tool_config_path=tools.yaml", "tool_config_path must be null"),
    ("rollout.checkpoint_manager_class=mine.Manager", "checkpoint_manager_class must be null"),
    ("actor.use_rollout_log_probs=true", "use_rollout_log_probs must be false"),
    # What a run does, where it begins and ends
    ("trainer.val_only=true trainer.val_before_train=false", "val_before_train must be true with trainer.val_only"),
    ("trainer.resume_from_path=checkpoints/global_step_3", "trainer.resume_mode must be resume_path with"),
    ("actor.checkpoint.save_contents=[hf_model]", "it would go on with the weights that it began with"),
    ("actor.checkpoint.save_contents=[model,optimiser,extra]", "must be a list of model, optimizer, extra, hf_model"),
    ("actor.checkpoint.async_save=true", "veRL would never note which checkpoint to resume from"),
    ("trainer.total_training_steps=500", "at most 240, the steps of all epochs"),
    ("trainer.critic_warmup=10", "trainer.critic_warmup must be 0 without a critic"),
    ("data.train_batch_size=1024", "data.train_batch_size must be at most 256, the rows of data.train_files"),
    ("data.gen_batch_size=1024", "data.gen_batch_size must be at most 256, the rows of data.train_files"),
    ("rollout.val_kwargs.do_sample=false", "temperature must be 0 with rollout.val_kwargs.do_sample=false"),
    # Groups, advantages and losses
    ("rollout.n=1", "rollout.n must be 2 or more with replay.enable=true"),
    (
        "rollout.n=1 replay.enable=false algorithm.adv_estimator=rloo_vectorized",
        "rloo_vectorized: every advantage of a group of one is 0",
    ),
    (
        "rollout.n=1 +baseline=dynamic_sampling algorithm.adv_estimator=reinforce_plus_plus",
        "a group of one is never filtered",
    ),
    (f"{CORRECTION}.bypass_mode=true", "bypass_mode must be false: the V1 trainer does not use this mode's loss"),
    (
        f"{CORRECTION}.rollout_is=token rollout.calculate_log_probs=false",
        "rollout.calculate_log_probs must be true with",
    ),
    ("actor.policy_loss.loss_mode=bypass_mode", "does not pass algorithm.rollout_correction to this one"),
    ("algorithm.use_pf_ppo=true", "would give their advantages to other rows"),
    ("rollout.logprobs_mode=raw_logits", "anything else would be read as log-probs"),
    ("actor.use_kl_loss=true actor.kl_loss_type=low_var", "kl_loss_type must be one of kl, k1, abs"),
    ("algorithm.use_kl_in_reward=true algorithm.kl_penalty=low_var", "kl_penalty must be one of kl, k1, abs"),
    ("rollout.temperature=0 rollout.val_kwargs.do_sample=false", "rollout.temperature must be more than 0"),
    ("actor.optim.lr_warmup_steps_ratio=2", "lr_warmup_steps_ratio must be from 0 to 1"),
    ("actor.optim.clip_grad=0", "clip_grad must be more than 0, got 0"),
    ("actor.loss_scale_factor=0", "loss_scale_factor must be more than 0"),
    ("actor.use_kl_loss=true actor.kl_loss_coef=-1", "kl_loss_coef must be at least 0"),
    ("actor.clip_ratio_low=-0.1", "clip_ratio_low must be at least 0"),
    ("rollout.enable_rollout_routing_replay=true", "stored successes do not have the data for it"),
    ("distillation.enabled=true", "set replay.enable=false"),
    ("algorithm.episode_weight=equal actor.loss_agg_mode=token-sum", "token-mean with algorithm.episode_weight=equal"),
    ("algorithm.episode_weight=equal algorithm.adv_estimator=grpo", "replay_grpo with algorithm.episode_weight=equal"),
    # Lengths
    (
        "actor.use_dynamic_bsz=true actor.ppo_max_token_len_per_gpu=8192",
        "ppo_max_token_len_per_gpu must be at least 16384",
    ),
    ("rollout.max_model_len=32768", "max_model_len must be at least 65536"),
    ("data.max_prompt_length=64000 data.max_response_length=8192", "max_model_len must be at least 72192"),
    ("rollout.response_length=1024", "response_length must be data.max_response_length=60416: episodes are"),
    ("rollout.prompt_length=100", "leave it out, and set data.max_prompt_length"),
    ("rollout.ignore_eos=true", "each reply would go on until gui_agent.max_reply_tokens"),
    # LoRA
    ("model.lora.rank=32", "FSDP would train all weights, and the engine would wait for an adapter"),
    ("model.lora_adapter_path=somebody/adapter", "veRL would not load it, and would train all weights"),
    ("model.lora_rank=-4", "model.lora_rank must be at least 0"),
    ("model.lora_rank=32 model.lora_alpha=0", "model.lora_alpha must be more than 0"),
    ("model.lora_rank=32", "exclude_modules must be a pattern with `visual`: the engine would not load the adapter"),
    ("model.lora_rank=32 model.target_modules=[q_proj,up_proj]", "exclude_modules must be a pattern with `visual`"),
    # Frontier sampling
    ("data.tasks.sampling=frontier data.dataloader_num_workers=8", "must be 0 with data.tasks.sampling=frontier"),
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
]
SILENT_IN_ASYNC = [
    ("actor.fsdp_config.param_offload=true", "all but the last would be lost"),
    ("actor.fsdp_config.offload_policy=true", "all but the last would be lost"),
    ("trainer.v1.separate_async.hybrid_rollout.enable_switch=true", "enable_switch must be false"),
]
SILENT_IN_WINDOW = [
    ("algorithm.adv_estimator=rloo", "adv_estimator must be replay_grpo or grpo with episodes of several rows"),
    ("actor.loss_agg_mode=seq-mean-token-sum", "others count each row as an episode"),
    ("rollout.enable_rollout_routing_replay=true", "only the last row would have the data for it"),
    ("distillation.enabled=true", "distillation.enabled must be false with episodes of several rows"),
    ("trainer.v1.sampler.custom_sampler.name=Other", "must be ReplaySampler or ReplaySamplerAsync with"),
]

# Recipe, what is typed behind it, and veRL's own words, before Ray starts.
IN_VERLS_WORDS = [
    (FULL, "trainer.v1.trainer_mode=async", "'trainer.v1.sampler.by_mode.async' not found"),
    (FULL, "rollout.temperature=0", "validation gen temperature should be greater than 0 when enabling do_sample"),
    (FULL, "trainer.nnodes=3", "(128) must be divisible by minimal possible batch size (24)"),
    (FULL, "actor.ppo_micro_batch_size=16", "You have set both 'actor.ppo_micro_batch_size' AND"),
    (FULL, "actor.optim.lr_scheduler_type=linear", 'assert self.lr_scheduler_type in ["constant", "cosine"]'),
    (FULL, "actor.loss_agg_mode=seq-mean", "Invalid loss_agg_mode: seq-mean"),
    (FULL, "actor.ppo_mini_batch_size=32", "train_batch_size (16) must be >= actor.ppo_mini_batch_size (32)"),
    (FULL, "actor.ppo_micro_batch_size_per_gpu=null", "[actor] Please set at least one of"),
    (FULL, "actor.use_kl_loss=true ref.log_prob_micro_batch_size_per_gpu=null", "[actor_rollout_ref.ref] Please set"),
    (FULL, "rollout.mode=sync", "Rollout mode 'sync' has been removed"),
    (FULL, "rollout.pipeline_model_parallel_size=2", "not implemented pipeline_model_parallel_size > 1"),
    (
        ASYNC,
        "trainer.v1.separate_async.hybrid_rollout.switch_threshold_ratio=2",
        "switch_threshold_ratio must be in (0, 1]",
    ),
]

# What is typed behind a recipe, and words of the refusal, which another of our checks makes.
ELSEWHERE = [
    ("algorithm.filter_groups.enable=true algorithm.filter_groups.metric=null", "metric must be the name of a reward"),
    (f"TMPDIR=/{'x' * 130}", "TMPDIR must be at most 39 bytes long, since Ray makes sockets below it"),
    ("algorithm.adv_estimator=replay_grop", "did you mean replay_grpo?"),
    ("algorithm.adv_estimator=remax", "adv_estimator must be one of"),
    ("actor.policy_loss.loss_mode=default", "policy_loss.loss_mode must be one of"),
    ("rollout.limit_images=10", "limit_images must be at least the 15 screenshots of an episode, got 10"),
    (f"{SPLIT_IMAGES}=5", "limit_mm_per_prompt.image must be at least the 15 screenshots of an episode, got 5"),
    ("data.max_prompt_length=1024", "the tokens of the first turn: a screenshot (2691) and the prompt"),
    ("trainer.logger=[console,wandbb]", "got 'wandbb'; did you mean wandb?"),
    ("trainer.logger=[file,trackio]", "installed and logged in, got 'trackio'; pip install trackio, or leave it out"),
    ("trainer.logger=vemlp_wandb", "got 'vemlp_wandb'; pip install volcengine_ml_platform, set VOLC_ACCESS"),
    ("trainer.logger=[wandb] HOME=/nobody", "got 'wandb'; pip install wandb, set WANDB_API_KEY, or leave it out"),
    # Words in the place of a number, or of true and false
    ("trainer.val_only=flase", "trainer.val_only must be true or false, got 'flase'"),
    ("actor.optim.lr=fast", "actor.optim.lr must be a number"),
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
        "model.lora_rank=32 model.exclude_modules=.*visual.* actor.optim.lr=1e-5 "
        "actor.optim.lr_scheduler_type=cosine actor.optim.min_lr_ratio=0.1 "
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
        f"data.gen_batch_size=1536 {REWARD}.path=null",
    ),
    (
        FULL,
        "algorithm.filter_groups.enable=true algorithm.filter_groups.metric=mine trainer.val_before_train=1 "
        "data.max_response_length=50000 model.lora_rank=32 model.lora_alpha=64 model.target_modules=.*layers.*proj "
        "actor.loss_scale_factor=null "
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
    """Where a user types: with a checkpoint."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "checkpoints" / "global_step_3").mkdir(parents=True)
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


def test_a_vllm_with_caches_elsewhere_takes_no_shm(compose, monkeypatch):
    monkeypatch.setattr(silent, "installed_version", {"vllm": "0.31.0+cu130"}.get)
    (problem,) = problems_of(check_silent, Recipe(compose(FULL, "")))
    assert "mm_processor_cache_type must be lru with vLLM 0.31.0+cu130" in problem
    monkeypatch.setattr(silent, "installed_version", {"vllm": "0.30.1"}.get)
    assert not problems_of(check_silent, Recipe(compose(FULL, "")))


@pytest.mark.parametrize(
    ("recipe", "words", "says"),
    [
        *((FULL, *row) for row in SILENT_IN_FULL),
        *((ASYNC, *row) for row in SILENT_IN_ASYNC),
        *((WINDOW, *row) for row in SILENT_IN_WINDOW),
    ],
)
def test_what_verl_would_pass_over_in_silence_is_refused(recipe, words, says, compose):
    problems = problems_of(check_silent, Recipe(compose(recipe, words)))
    assert any(says in problem for problem in problems), problems


@pytest.mark.parametrize(("recipe", "words", "says"), IN_VERLS_WORDS)
def test_what_verl_refuses_is_told_in_its_words(recipe, words, says, compose):
    problems = problems_of(check_recipe, compose(recipe, words))
    assert any(problem.startswith("veRL refuses the recipe: ") and says in problem for problem in problems), problems


@pytest.mark.parametrize(("words", "says"), ELSEWHERE)
def test_so_is_what_another_check_refuses(words, says, compose):
    problems = problems_of(check_recipe, compose(FULL, words))
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
        "data.train_batch_size must be at most 256",
        "reward_model.reward_manager must be null",
        "data.max_prompt_length must be at least",
    ):
        assert any(says in problem for problem in problems), (says, problems)


def test_another_engine_is_refused_alone_since_no_other_check_knows_its_sections(compose):
    (problem,) = problems_of(check_recipe, compose(FULL, "model_engine=megatron"))
    assert problem.startswith("model_engine must be dp, which is FSDP")
    assert problem.endswith("got 'megatron'; leave it out")
