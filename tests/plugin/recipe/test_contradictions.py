"""Recipes that cannot do what they say are refused within seconds, in words that say what to set; sound ones pass.

Each row is what a user might type behind a shipped recipe. Some are taken out of published training scripts: veRL's for
DAPO and for GRPO with Qwen2.5-VL, the ARPO reference's, EasyR1's in veRL's names.
"""

import importlib
import importlib.util
import time
from pathlib import Path

import pytest
from support.checkpoints import write_shards
from support.composed import compose_recipe

from arpo_verl.config import Problems
from arpo_verl.models.official_words import PACKAGE
from arpo_verl.plugin.recipe import checks
from arpo_verl.plugin.recipe.checks import check_recipe
from arpo_verl.tasks.loader import shipped_file

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(PACKAGE) is None, reason=f"needs {PACKAGE}, whose words recipes use"
)

LIMIT_S = 5.0
FULL, ASYNC, WINDOW = "osworld_full", "osworld_full_async", "osworld_window"
A, R, M, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "model", "ref"))
CORRECTION = "algorithm.rollout_correction"

# Recipe, what is typed behind it, and words of the refusal.
CONTRADICTORY = [
    # Which trainer, and whether our parts are in it
    (FULL, "trainer.use_v1=false", "trainer.use_v1 must be true"),
    (FULL, "model_engine=megatron", "model_engine must be dp, which is FSDP"),
    (
        FULL,
        "trainer.v1.trainer_mode=async",
        "trainer.v1.trainer_mode must be one of sync, colocate_async, separate_async",
    ),
    (FULL, "VERL_USE_EXTERNAL_PLUGINS=none", "VERL_USE_EXTERNAL_PLUGINS must be auto, or a list with arpo_verl"),
    (FULL, "VERL_USE_EXTERNAL_PLUGINS=mine,other", "got 'mine,other'; unset it in the environment"),
    (FULL, "VLLM_PLUGINS=mine", "VLLM_PLUGINS must be unset, or a list with arpo_verl"),
    (
        FULL,
        f"{R}.tensor_model_parallel_size=4 trainer.n_gpus_per_node=2 trainer.nnodes=8",
        "mm_processor_cache_type must be lru with an engine of 4 GPUs, more than a node has",
    ),
    (
        FULL,
        f"{R}.data_parallel_size=2",
        "mm_processor_cache_type must be lru with rollout.data_parallel_size=2",
    ),
    (FULL, f"{R}.agent.default_agent_loop=tool_agent", "default_agent_loop must be gui_agent"),
    (FULL, f"{R}.agent.agent_loop_manager_class=my.Manager", "leaves the trainer waiting for ever, got 'my.Manager'"),
    (FULL, "trainer.v1.sampler.custom_sampler.path=null", "veRL's own samplers replay nothing"),
    (FULL, "custom_reward_function.path=mine.py", "the V1 trainer reads reward.custom_reward_function.path alone"),
    (FULL, "reward_model.reward_manager=dapo", "got 'dapo'; set reward.reward_manager.name"),
    # What a run does, where it begins and ends
    (
        FULL,
        "trainer.val_only=true trainer.val_before_train=false",
        "val_before_train must be true with trainer.val_only",
    ),
    (FULL, "trainer.resume_mode=autp", "got 'autp'; did you mean auto?"),
    (FULL, "trainer.resume_mode=resume_path", "resume_from_path must be the folder global_step_N of a checkpoint"),
    (
        FULL,
        "trainer.resume_mode=resume_path trainer.resume_from_path=checkpoints/global_step_9",
        "got 'checkpoints/global_step_9'; name one that is here, or set trainer.resume_mode=auto",
    ),
    (FULL, "trainer.resume_from_path=checkpoints/global_step_3", "trainer.resume_mode must be resume_path with"),
    (FULL, f"{A}.checkpoint.save_contents=[hf_model]", "it would go on with the weights that it began with"),
    (
        FULL,
        f"{A}.checkpoint.save_contents=[model,optimiser,extra]",
        "must be a list of model, optimizer, extra, hf_model",
    ),
    (FULL, f"{A}.checkpoint.async_save=true", "veRL would never note which checkpoint to resume from"),
    (FULL, "trainer.total_epochs=0", "trainer.total_epochs must be 1 or more"),
    (FULL, "trainer.total_training_steps=500", "at most 240, the steps of trainer.total_epochs=15"),
    (FULL, "trainer.critic_warmup=10", "trainer.critic_warmup must be 0 without a critic"),
    (FULL, "trainer.logger=[console,wandbb]", "trainer.logger must be of console, file, tensorboard, wandb"),
    # Groups, advantages and losses
    (FULL, f"{R}.n=1", "rollout.n must be 2 or more with replay.enable=true"),
    (
        FULL,
        f"{R}.n=1 replay.enable=false algorithm.adv_estimator=rloo_vectorized",
        "a group of one has nothing to compare",
    ),
    (
        FULL,
        f"{R}.n=1 +baseline=dynamic_sampling algorithm.adv_estimator=reinforce_plus_plus",
        "a group of one is never filtered",
    ),
    (FULL, "algorithm.filter_groups.enable=true algorithm.filter_groups.metric=acc", "got 'acc'; set it to reward"),
    (
        FULL,
        "algorithm.filter_groups.enable=true algorithm.filter_groups.metric=overall",
        "metric must be reward, or one of",
    ),
    (
        FULL,
        "algorithm.filter_groups.enable=true reward.reward_model.enable=true",
        "which scores after groups are filtered",
    ),
    (FULL, "algorithm.adv_estimator=remax", "the V1 trainer does not compute what remax needs"),
    (FULL, "algorithm.adv_estimator=gae critic.enable=false", "which needs the critic's values"),
    (FULL, "algorithm.adv_estimator=replay_grop", "did you mean replay_grpo?"),
    (FULL, f"{CORRECTION}.bypass_mode=true", "bypass_mode must be false: the V1 trainer takes the rollout's log-probs"),
    (
        FULL,
        f"{CORRECTION}.rollout_is=token {R}.calculate_log_probs=false",
        "rollout.calculate_log_probs must be true with",
    ),
    (FULL, f"{CORRECTION}.rollout_is=tokens", "got 'tokens'; did you mean token?"),
    (FULL, f"{CORRECTION}.rollout_rs=seq_mean_k1", "rollout_rs_threshold must be given with"),
    (FULL, f"{A}.use_kl_loss=true {A}.kl_loss_type=low_var", "got 'low_var'; did you mean low_var_kl"),
    (FULL, f"{A}.clip_ratio=0.1", "the loss reads actor.clip_ratio_low=0.2 and actor.clip_ratio_high=0.3 in its place"),
    (FULL, f"{A}.clip_ratio_c=1.0", "clip_ratio_c must be more than 1, got 1.0"),
    (FULL, f"{A}.grad_clip=0.5", "no engine of veRL's reads it, got 0.5; set actor_rollout_ref.actor.optim.clip_grad"),
    (FULL, f"{A}.freeze_vision_tower=true", "freeze_vision_tower must be false: nothing in veRL 0.9.1's FSDP trainer"),
    (FULL, f"{R}.temperature=0", "rollout.temperature must be more than 0 in training"),
    (FULL, f"{A}.policy_loss.loss_mode=default", "policy_loss.loss_mode must be one of"),
    (FULL, f"{A}.policy_loss.loss_mode=bypass_mode", "hands this one nothing of algorithm.rollout_correction"),
    (FULL, f"{A}.loss_agg_mode=seq-mean", "Invalid loss_agg_mode: seq-mean"),
    (
        FULL,
        f"algorithm.episode_weight=equal {A}.loss_agg_mode=token-sum",
        "token-mean with algorithm.episode_weight=equal",
    ),
    (FULL, "data.tasks.sampling=frontier data.dataloader_num_workers=8", "must be 0 with data.tasks.sampling=frontier"),
    # Batches
    (FULL, "data.train_batch_size=1024", "data.train_batch_size must be at most 256, the rows of data.train_files"),
    (FULL, "data.gen_batch_size=48", "gen_batch_size must be a divisor of data.train_batch_size=16"),
    (FULL, f"{A}.ppo_mini_batch_size=32", "train_batch_size (16) must be >= actor.ppo_mini_batch_size (32)"),
    (FULL, "trainer.nnodes=3", "it makes 6 equal shares"),
    (FULL, f"{A}.ppo_micro_batch_size_per_gpu=10", "must be a divisor of 16, the rows of an update on one GPU"),
    (FULL, f"{R}.log_prob_micro_batch_size_per_gpu=20", "log_prob_micro_batch_size_per_gpu must be a divisor of 16"),
    (
        FULL,
        f"{A}.ppo_micro_batch_size=16 {A}.ppo_micro_batch_size_per_gpu=null",
        "set it in the place of actor_rollout_ref",
    ),
    (FULL, f"{A}.ppo_micro_batch_size_per_gpu=null", "[actor] Please set at least one of 'actor.ppo_micro_batch_size'"),
    (FULL, f"{R}.log_prob_use_dynamic_bsz=true", "must be False as actor_rollout_ref.actor.use_dynamic_bsz"),
    (
        FULL,
        f"{A}.use_dynamic_bsz=true {A}.ppo_max_token_len_per_gpu=8192",
        "at least 65536 when multiplied by the 4 GPUs",
    ),
    (FULL, f"{A}.use_kl_loss=true {REF}.log_prob_micro_batch_size_per_gpu=null", "[actor_rollout_ref.ref] Please set"),
    # GPUs and engines
    (FULL, f"{A}.fsdp_config.ulysses_sequence_parallel_size=7", "must be one of 1, 2, 4: what splits this policy's 28"),
    (
        FULL,
        f"{A}.use_kl_loss=true {REF}.fsdp_config.ulysses_sequence_parallel_size=8",
        "ref.fsdp_config.ulysses_sequence_parallel_size must be one of 1, 2, 4",
    ),
    (FULL, f"{M}.use_remove_padding=false", "use_remove_padding must be true with"),
    (FULL, f"{A}.fsdp_config.fsdp_size=5", "fsdp_size must be -1 or a divisor of 16"),
    (
        FULL,
        f"{A}.strategy=fsdp {A}.fsdp_config.offload_policy=true",
        "offload_policy must be false with actor.strategy=fsdp",
    ),
    (FULL, f"{M}.use_fused_kernels=true", "mixed torch.Tensor and DTensor"),
    (
        FULL,
        f"+policy=qwen3_vl {M}.use_fused_kernels=true {M}.fused_kernel_options.impl_backend=triton",
        "use_fused_kernels must be false",
    ),
    (FULL, f"{R}.tensor_model_parallel_size=3", "the 16 GPUs that train make whole engines, of 3 each"),
    (FULL, f"{R}.tensor_model_parallel_size=8", "a divisor of the attention heads: this policy has 28"),
    (FULL, f"{R}.max_model_len=32768", "max_model_len must be at least 65536"),
    (FULL, f"{R}.enable_chunked_prefill=false", "vLLM does not start otherwise"),
    (FULL, f"{R}.name=hf", "rollout.name must be one of vllm, sglang"),
    (FULL, f"{R}.mode=sync", "Rollout mode 'sync' has been removed"),
    (FULL, f"{R}.pipeline_model_parallel_size=2", "not implemented pipeline_model_parallel_size > 1"),
    (FULL, f"+{R}.limit_images=10", "limit_images must be at least the 15 screenshots of an episode, got 10"),
    (FULL, "data.max_prompt_length=1024", "what the first turn takes: a screenshot of 2691 tokens"),
    (FULL, "data.max_prompt_length=64000 data.max_response_length=8192", "max_model_len must be at least 72192"),
    # The asynchronous trainers
    (ASYNC, "data.train_batch_size=32", "data.train_batch_size must be 16 with trainer_mode=separate_async"),
    (ASYNC, f"{R}.nnodes=0", "rollout.nnodes must be 1 or more with trainer_mode=separate_async"),
    (ASYNC, f"{R}.checkpoint_engine.backend=naive", "naive brings no weights to another node"),
    (ASYNC, "trainer.v1.trainer_mode=colocate_async", "rollout.nnodes must be 0 with trainer_mode=colocate_async"),
    (ASYNC, f"{A}.fsdp_config.param_offload=true", "all but the last would be lost"),
    (ASYNC, "actor_rollout_ref.hybrid_engine=false", "hybrid_engine must be true"),
    (ASYNC, "trainer.v1.sampler.max_off_policy_threshold=0", "a whole number from 1, or null for no bound, got 0"),
    (ASYNC, "trainer.v1.sampler.max_off_policy_strategy=skip", "must be one of drop, wait, got 'skip'"),
    (ASYNC, "reward.reward_model.enable=true", "generation never pauses to make room for a reward model"),
    (
        ASYNC,
        "trainer.v1.separate_async.hybrid_rollout.switch_threshold_ratio=2",
        "switch_threshold_ratio must be in (0, 1]",
    ),
    (FULL, "reward.reward_model.enable_resource_pool=true", "reward_model.nnodes must be 1 or more"),
    # Episodes of several rows
    (WINDOW, "algorithm.adv_estimator=rloo", "takes each row for a rollout of the group"),
    (WINDOW, "critic.enable=true", "critic.enable must be false with episodes of several rows"),
    (WINDOW, f"{A}.loss_agg_mode=seq-mean-token-sum", "a mean over sequences takes each for an episode"),
]

SOUND = [
    *((name, "") for name in (FULL, ASYNC, WINDOW, "osworld_subset32")),
    *((FULL, f"+baseline={name}") for name in ("grpo", "dynamic_sampling", "arpo_dynamic")),
    *((FULL, f"+policy={name}") for name in ("qwen25_vl", "qwen3_vl")),
    *((FULL, f"+context={name}") for name in ("window", "segments")),
    (WINDOW, "replay.enable=false algorithm.adv_estimator=grpo"),
    (FULL, "VERL_USE_EXTERNAL_PLUGINS=other,arpo_verl"),
    (FULL, "VLLM_PLUGINS=other,arpo_verl"),
    (FULL, f"VLLM_PLUGINS=other {R}.engine_kwargs.vllm.mm_processor_cache_type=lru"),
    (FULL, "VERL_USE_EXTERNAL_PLUGINS=none VERL_USE_EXTERNAL_MODULES=arpo_verl.plugin"),
    (FULL, "trainer.val_only=true"),
    (FULL, "trainer.resume_mode=disable"),
    (FULL, "trainer.resume_mode=resume_path trainer.resume_from_path=checkpoints/global_step_3"),
    (FULL, f"{A}.checkpoint.save_contents=[model]"),
    (FULL, f"{A}.checkpoint.save_contents=[hf_model] trainer.resume_mode=disable"),
    (FULL, "trainer.total_training_steps=240"),
    (FULL, "trainer.total_training_steps=3"),
    (FULL, "trainer.logger=[console,wandb]"),
    (FULL, "trainer.logger=console"),
    (FULL, "trainer.save_freq=-1 trainer.test_freq=-1"),
    (FULL, f"{R}.n=16"),
    (FULL, f"{R}.n=1 replay.enable=false algorithm.adv_estimator=reinforce_plus_plus"),
    (FULL, f"{R}.n=1 +baseline=grpo"),
    (FULL, "algorithm.filter_groups.enable=true algorithm.filter_groups.metric=success"),
    (
        FULL,
        "algorithm.filter_groups.enable=true algorithm.filter_groups.metric=mine "
        "reward.custom_reward_function.path=mine.py reward.custom_reward_function.name=mine",
    ),
    (FULL, "algorithm.adv_estimator=rloo replay.enable=false"),
    (FULL, "algorithm.adv_estimator=mine trainer.v1.sampler.custom_sampler.path=mine.py"),
    (FULL, f"{CORRECTION}.rollout_is=token"),
    (FULL, f"{CORRECTION}.rollout_rs=seq_mean_k3 {CORRECTION}.rollout_rs_threshold=0.01"),
    (FULL, f"{A}.use_kl_loss=true {A}.kl_loss_coef=0.01 {A}.kl_loss_type=low_var_kl"),
    (FULL, "algorithm.use_kl_in_reward=true algorithm.kl_ctrl.kl_coef=0.01"),
    (FULL, f"{A}.use_kl_loss=true {A}.use_dynamic_bsz=true"),
    (FULL, f"{A}.clip_ratio_low=0.2 {A}.clip_ratio_high=0.28 {A}.clip_ratio_c=10.0"),
    (FULL, f"{A}.clip_ratio=0.28 {A}.clip_ratio_low=0.28 {A}.clip_ratio_high=0.28"),
    (FULL, f"{A}.grad_clip=0.5 {A}.optim.clip_grad=0.5"),
    (FULL, f"{A}.policy_loss.loss_mode=gspo {A}.loss_agg_mode=seq-mean-token-mean"),
    (FULL, "algorithm.episode_weight=equal"),
    (FULL, f"{A}.use_dynamic_bsz=true"),
    (FULL, "data.gen_batch_size=8"),
    (FULL, "data.gen_batch_size=48 algorithm.filter_groups.enable=true"),
    (FULL, "trainer.nnodes=4"),
    (FULL, f"{A}.ppo_micro_batch_size_per_gpu=2 {R}.log_prob_micro_batch_size_per_gpu=4"),
    (FULL, f"{A}.ulysses_sequence_parallel_size=2"),
    (FULL, f"{A}.strategy=fsdp {M}.use_fused_kernels=true"),
    (FULL, f"+policy=qwen3_vl {M}.use_fused_kernels=true"),
    (FULL, f"{A}.fsdp_config.fsdp_size=8"),
    (FULL, f"{M}.lora_rank=32 {A}.use_kl_loss=true"),
    (FULL, f"{R}.tensor_model_parallel_size=4 {R}.max_model_len=131072"),
    (FULL, f"{R}.enable_chunked_prefill=false {R}.max_num_batched_tokens=65536"),
    (FULL, f"{R}.val_kwargs.do_sample=false {R}.val_kwargs.temperature=0"),
    (FULL, f"+{R}.limit_images=15"),
    (FULL, "trainer.v1.trainer_mode=colocate_async"),
    (FULL, "data.tasks.sampling=frontier"),
    (ASYNC, f"trainer.v1.trainer_mode=colocate_async trainer.nnodes=2 {R}.nnodes=0"),
    (ASYNC, "actor_rollout_ref.hybrid_engine=false VERL_LOGGING_LEVEL=WARNING"),
    (ASYNC, "trainer.v1.sampler.max_off_policy_threshold=null"),
    (ASYNC, "trainer.v1.sampler.max_off_policy_strategy=wait"),
]

# What veRL's own script for DAPO says, on our recipe: all that cannot be is told at once.
DAPO = (
    "algorithm.adv_estimator=grpo algorithm.filter_groups.enable=true algorithm.filter_groups.metric=acc "
    "algorithm.filter_groups.max_num_gen_batches=10 data.train_batch_size=512 data.gen_batch_size=1536 "
    "data.max_prompt_length=2048 data.max_response_length=20480 "
    f"{R}.n=16 {A}.ppo_mini_batch_size=32 {A}.use_dynamic_bsz=true {A}.ppo_max_token_len_per_gpu=22528 "
    f"{A}.clip_ratio_low=0.2 {A}.clip_ratio_high=0.28 {A}.clip_ratio_c=10.0 {A}.grad_clip=1.0 "
    f"{A}.ulysses_sequence_parallel_size=8 {R}.tensor_model_parallel_size=4 "
    "reward_model.reward_manager=dapo trainer.total_epochs=1"
)


@pytest.fixture(scope="module", autouse=True)
def imported():
    """What the trainer's process has imported before it checks a recipe."""
    for name in ("transformers.models.qwen2_vl.image_processing_qwen2_vl", "verl.trainer.main_ppo"):
        importlib.import_module(name)


@pytest.fixture
def problems_of(monkeypatch, tmp_path):
    """What a start with these words would be refused with, and the CPU seconds of the check."""
    for name in ("VERL_USE_EXTERNAL_PLUGINS", "VERL_USE_EXTERNAL_MODULES", "VERL_LOGGING_LEVEL", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(checks, "check_provider", lambda _: None)  # Docker and its virtual machine
    monkeypatch.setattr(checks, "RAY_CLUSTER_FILE", tmp_path / "none")
    monkeypatch.chdir(tmp_path)
    write_shards(Path("checkpoints/global_step_3"), ranks=16)
    Path("mine.py").write_text("from arpo_verl.plugin.sampler import ReplaySampler\n\ndef mine(): ...\n")
    tasks = [f"data.{split}_files={shipped_file('dialog-confirm-yes')}" for split in ("train", "val")]

    def problems(recipe: str, words: str) -> tuple[list[str], float]:
        typed = words.split()
        variables = [word for word in typed if word.partition("=")[0].isupper()]
        for variable in variables:
            monkeypatch.setenv(*variable.split("="))
        config = compose_recipe(
            recipe, *tasks, "+data.tasks.repeat=256", *(word for word in typed if word not in variables)
        )
        found, begin = Problems(), time.thread_time()
        with found.gather():
            check_recipe(config)
        return [str(error) for error in found.errors], time.thread_time() - begin

    return problems


@pytest.mark.parametrize(("recipe", "words", "says"), CONTRADICTORY)
def test_a_recipe_that_contradicts_itself_is_refused(recipe, words, says, problems_of):
    problems, seconds = problems_of(recipe, words)
    assert any(says in problem for problem in problems), problems
    assert seconds < LIMIT_S


@pytest.mark.parametrize(("recipe", "words"), SOUND)
def test_a_sound_recipe_passes(recipe, words, problems_of):
    assert problems_of(recipe, words)[0] == []


def test_there_are_fifty_of_each():
    assert len(CONTRADICTORY) >= 50 and len(SOUND) >= 50


def test_all_that_is_wrong_with_a_published_script_is_told_at_once(problems_of):
    problems, _ = problems_of("osworld_full", DAPO)
    for says in (
        "filter_groups.metric must be reward",
        "data.train_batch_size must be at most 256",
        "reads reward.reward_manager.name alone",
        "data.max_prompt_length must be at least",
        "ulysses_sequence_parallel_size must be one of 1, 2, 4",
    ):
        assert any(says in problem for problem in problems), (says, problems)


def test_another_engine_is_refused_alone_since_no_other_check_knows_its_sections(problems_of):
    (problem,), _ = problems_of("osworld_full", "model_engine=megatron")
    assert problem.startswith("model_engine must be dp") and problem.endswith("got 'megatron'; leave it out")
