"""Values that veRL, torch or the rollout engine would refuse minutes later are refused before anything starts."""

import functools
import pickle

import pytest
from omegaconf import OmegaConf
from support.composed import compose_recipe

from arpo_verl.config import Problems
from arpo_verl.footprint import KNOWN_MODELS
from arpo_verl.plugin.recipe.combinations import RULES
from arpo_verl.plugin.recipe.named import check_named
from arpo_verl.plugin.recipe.rules import Recipe, check_rules, full_name
from arpo_verl.plugin.recipe.values import wrong_kinds

FULL, ASYNC = "osworld_full", "osworld_full_async"
FSDP, QUEUE, KL = "actor.fsdp_config", "transfer_queue.backend.SimpleStorage", "algorithm.use_kl_in_reward=true"

# Recipe, what is set, and words of the refusal. `actor.`, `model.`, `ref.` and `rollout.` stand for their full names.
REFUSED = [
    # The rollout engine
    (FULL, "rollout.gpu_memory_utilization=1.5", "must be a number of more than 0 and at most 1, got 1.5"),
    (FULL, "rollout.gpu_memory_utilization=0", "more than 0"),
    (FULL, "rollout.dtype=float17", "got 'float17'; did you mean float16?"),
    (FULL, "rollout.top_p=0", "top_p must be a number of more than 0"),
    (FULL, "rollout.top_p=2", "at most 1 or null, got 2"),
    (FULL, "rollout.top_k=-5", "top_k must be a number of at least -1"),
    (FULL, "rollout.val_kwargs.top_p=0", "val_kwargs.top_p must be"),
    (FULL, "rollout.val_kwargs.temperature=-1", "val_kwargs.temperature must be"),
    (FULL, "rollout.val_kwargs.n=0", "val_kwargs.n must be a number of at least 1, got 0"),
    (FULL, "rollout.val_kwargs.do_sample=false", "the V1 trainer reads the temperature alone, and would sample by it"),
    (FULL, "rollout.ignore_eos=true", "each reply would go on until gui_agent.max_reply_tokens"),
    (FULL, "rollout.do_sample=false", "rollout.do_sample must be true: nothing here reads it, got False; set actor_"),
    (FULL, "rollout.repetition_penalty=1.1", "repetition_penalty must be 1.0: nothing here reads it, got 1.1"),
    (FULL, "rollout.trace.backend=weave", "rollout.trace.backend must be null: nothing here reads it"),
    (FULL, "rollout.multi_turn.max_assistant_turns=5", "set gui_agent.max_steps"),
    (FULL, "rollout.multi_turn.tool_config_path=tools.yaml", "tool_config_path must be null"),
    (FULL, "rollout.checkpoint_manager_class=mine.Manager", "checkpoint_manager_class must be null"),
    (FULL, "actor.use_torch_compile=false", "set actor_rollout_ref.actor.fsdp_config.use_torch_compile"),
    (FULL, "actor.use_fused_kernels=true", "must be False as actor_rollout_ref.model.use_fused_kernels, which alone"),
    (FULL, "actor.use_remove_padding=false", "leave it out, and set actor_rollout_ref.model.use_remove_padding"),
    (FULL, "actor.use_rollout_log_probs=true", "use_rollout_log_probs must be false"),
    (FULL, "model.lora.rank=32", "FSDP would train all weights, and the engine would wait for an adapter"),
    (FULL, "model.lora_adapter_path=somebody/adapter", "the adapter would not be loaded, and all weights trained"),
    (FULL, "rollout.max_num_seqs=0", "max_num_seqs must be"),
    (FULL, "rollout.max_num_batched_tokens=0", "max_num_batched_tokens must be"),
    (FULL, "rollout.agent.num_workers=0", "agent.num_workers must be"),
    (FULL, "rollout.checkpoint_engine.update_weights_bucket_megabytes=0", "update_weights_bucket_megabytes must be"),
    (FULL, "rollout.logprobs_mode=raw_logits", "must be one of processed_logprobs, raw_logprobs"),
    (FULL, "rollout.scheduling_policy=lifo", "must be one of fcfs, priority"),
    (FULL, "rollout.mode=asynchronous", "rollout.mode must be one of async"),
    (FULL, "rollout.response_length=1024", "response_length must be data.max_response_length=60416: episodes are"),
    (FULL, "rollout.prompt_length=100", "leave it out, and set data.max_prompt_length"),
    (
        FULL,
        "trainer.nnodes=4 trainer.n_gpus_per_node=6 rollout.tensor_model_parallel_size=4",
        "engines of 4 GPUs fill nodes of trainer.n_gpus_per_node=6",
    ),
    (FULL, "trainer.nnodes=8 trainer.n_gpus_per_node=3 rollout.tensor_model_parallel_size=4", "fill nodes of trainer"),
    (ASYNC, "rollout.n_gpus_per_node=6 rollout.tensor_model_parallel_size=4", "nodes of rollout.n_gpus_per_node=6"),
    # The policy, and its optimizer
    (FULL, "model.lora_rank=-4", "model.lora_rank must be a number of at least 0"),
    (FULL, "model.lora_rank=1000", "model.lora_rank must be a number of at most 512"),
    (FULL, "model.lora_rank=32 model.lora_alpha=0", "model.lora_alpha must be a number of more than 0"),
    (FULL, f"{FSDP}.model_dtype=int8", "model_dtype must be one of"),
    (FULL, f"{FSDP}.mixed_precision.param_dtype=bf17", "param_dtype must be one of"),
    (FULL, f"{FSDP}.forward_only=true", "forward_only must be false: such a policy cannot be trained"),
    (FULL, "actor.optim.lr_scheduler_type=linear", "lr_scheduler_type must be one of constant, cosine, got 'linear'"),
    (FULL, "actor.optim.lr_warmup_steps_ratio=2", "lr_warmup_steps_ratio must be"),
    (FULL, "actor.optim.clip_grad=0", "clip_grad must be a number of more than 0, got 0"),
    (FULL, "actor.optim.clip_grad=null", "clip_grad must be a number of more than 0, got None"),
    (FULL, "actor.ppo_epochs=0", "ppo_epochs must be a number of at least 1"),
    (FULL, "actor.use_kl_loss=true actor.kl_loss_coef=-1", "kl_loss_coef must be a number of at least 0"),
    (FULL, "actor.clip_ratio_low=-0.1", "clip_ratio_low must be"),
    (FULL, "actor.loss_scale_factor=0", "loss_scale_factor must be"),
    (FULL, "actor.use_prefix_grouper=true", "use_prefix_grouper must be false: nothing here reads it"),
    # Advantages, the critic, a reward model
    (FULL, f"{KL} algorithm.kl_penalty=low_var", "got 'low_var'; did you mean low_var_kl"),
    (FULL, f"{KL} algorithm.kl_ctrl.type=fix", "kl_ctrl.type must be one of fixed, adaptive"),
    (FULL, f"{KL} algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.horizon=0", "kl_ctrl.horizon must be"),
    (FULL, "algorithm.use_pf_ppo=true", "would give their advantages to other rows"),
    (FULL, "critic.enable=true", "replay_grpo, which has no use for a critic's values"),
    (FULL, "reward.reward_model.enable=true", "reward_model.model_path must be given"),
    (FULL, "rollout.enable_rollout_routing_replay=true", "no stored success has what it takes"),
    (FULL, "distillation.enabled=true", "set replay.enable=false"),
    # The run, and its queue
    (FULL, "trainer.total_training_steps=0", "total_training_steps must be a number of at least 1 or null, got 0"),
    (FULL, "trainer.total_training_steps=-5", "got -5"),
    (FULL, "trainer.checkpoint_callback_class=null", "no checkpoint would have the store of successes"),
    (FULL, "data.custom_cls.path=null", "veRL's own dataset reads no task files"),
    (FULL, "data.val_batch_size=-1", "data.val_batch_size must be"),
    (FULL, "data.dataloader_num_workers=-1", "data.dataloader_num_workers must be"),
    (FULL, f"{QUEUE}.num_data_storage_units=0", "num_data_storage_units must be"),
    (FULL, f"{QUEUE}.total_storage_size=100", "total_storage_size must be at least the rows of a step"),
    # Words in the place of a number, or of true and false
    (FULL, "trainer.val_only=flase", "trainer.val_only must be true or false, got 'flase'"),
    (FULL, "rollout.temperature=hot", "rollout.temperature must be a number, got 'hot'"),
    (FULL, "actor.use_dynamic_bsz=maybe", "actor.use_dynamic_bsz must be true or false"),
    (FULL, "actor.optim.lr=fast", "actor.optim.lr must be a number"),
    # What is named
    (FULL, "reward.custom_reward_function.path=nofile.py", "a Python file that is here, or pkg://MODULE"),
    (FULL, "reward.custom_reward_function.name=compute", "did you mean compute_score?"),
    (FULL, "reward.custom_reward_function.path=mine.py", "must be a name of mine.py, got 'compute_score'"),
    (FULL, "reward.custom_reward_function.path=pkg://no_such.module", "must be a module that can be imported"),
    (FULL, "data.custom_cls.name=Dataset", "data.custom_cls.name must be a name of"),
    (FULL, "trainer.v1.sampler.custom_sampler.path=mine.py", "must be a name of mine.py, got 'ReplaySampler'"),
    (FULL, "trainer.checkpoint_callback_class=arpo_verl.plugin.checkpoints.Callback", "must be a name of"),
    (FULL, "trainer.checkpoint_callback_class=no.such.Callback", "must be a class by its module"),
    (FULL, "model.external_lib=no_such_module", "external_lib must be a module that can be imported"),
    (FULL, "actor.optim.optimizer_impl=no.such", "optimizer_impl must be a module that can be imported"),
    (FULL, "rollout.agent.agent_loop_config_path=loops.yaml", "agent_loop_config_path must be a path that is here"),
    (FULL, "model.lora_adapter_path=./adapter", "lora_adapter_path must be a path that is here"),
]

SOUND = [
    *((name, "") for name in (FULL, ASYNC, "osworld_window", "osworld_subset32", "embedded")),
    (FULL, "rollout.gpu_memory_utilization=1"),
    (FULL, "rollout.top_p=1 rollout.top_k=0"),
    (FULL, "rollout.top_k=50 rollout.top_p=0.95"),
    (FULL, "rollout.val_kwargs.temperature=0 rollout.val_kwargs.n=4"),
    (FULL, "rollout.dtype=auto"),
    (FULL, "rollout.logprobs_mode=raw_logprobs"),
    (FULL, "rollout.max_num_seqs=64 rollout.max_num_batched_tokens=8192"),
    (FULL, "data.max_response_length=50000"),
    (
        FULL,
        "trainer.nnodes=4 trainer.n_gpus_per_node=6 rollout.tensor_model_parallel_size=2 actor.ppo_mini_batch_size=12 "
        "data.train_batch_size=24",
    ),
    (
        FULL,
        "trainer.nnodes=8 trainer.n_gpus_per_node=2 rollout.tensor_model_parallel_size=4 "
        "rollout.engine_kwargs.vllm.mm_processor_cache_type=lru",
    ),
    (FULL, "trainer.nnodes=16 trainer.n_gpus_per_node=1 rollout.tensor_model_parallel_size=1"),
    (ASYNC, "rollout.n_gpus_per_node=4 rollout.tensor_model_parallel_size=4"),
    (FULL, "rollout.n_gpus_per_node=6 rollout.tensor_model_parallel_size=4"),
    (FULL, "model.lora_rank=32"),
    (FULL, "model.lora_rank=32 model.lora_alpha=64"),
    (FULL, "model.lora_rank=0 model.lora_alpha=0"),
    (FULL, f"{FSDP}.model_dtype=bfloat16"),
    (FULL, f"{FSDP}.mixed_precision.param_dtype=bf16"),
    (FULL, "actor.optim.lr=1e-5 actor.optim.lr_scheduler_type=cosine actor.optim.min_lr_ratio=0.1"),
    (FULL, "actor.optim.lr=0"),
    (FULL, "actor.optim.lr_warmup_steps=1000"),
    (FULL, "actor.optim.lr_warmup_steps_ratio=0.03"),
    (FULL, "actor.optim.clip_grad=0.5"),
    (FULL, "actor.ppo_epochs=2"),
    (FULL, "actor.kl_loss_coef=0 actor.use_kl_loss=true"),
    (FULL, "actor.clip_ratio_low=0 actor.clip_ratio_high=10"),
    (FULL, "actor.loss_scale_factor=100"),
    (FULL, "actor.loss_scale_factor=null"),
    (FULL, "actor.checkpoint.load_contents=[model]"),
    (FULL, "actor.checkpoint.save_contents=[model] actor.checkpoint.load_contents=[model,optimizer,extra]"),
    (FULL, "actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"),
    (FULL, f"{KL} algorithm.kl_penalty=kl+"),
    (FULL, f"{KL} algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.horizon=1000"),
    (FULL, "algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.horizon=0"),
    (FULL, "algorithm.rollout_correction.rollout_is=token algorithm.rollout_correction.rollout_is_threshold=0.5_2.0"),
    (FULL, "critic.enable=false"),
    (FULL, "critic.enable=null"),
    (FULL, "replay.enable=false distillation.enabled=true"),
    (FULL, "replay.enable=false trainer.checkpoint_callback_class=null"),
    (FULL, "trainer.total_training_steps=1"),
    (FULL, "trainer.total_training_steps=null"),
    (FULL, "trainer.val_before_train=1"),
    (FULL, "data.val_batch_size=0"),
    (FULL, "data.val_batch_size=16"),
    (FULL, "data.dataloader_num_workers=4"),
    (FULL, "data.seed=7"),
    (FULL, f"{QUEUE}.total_storage_size=null"),
    (FULL, f"{QUEUE}.num_data_storage_units=1"),
    (FULL, "reward.custom_reward_function.path=mine.py reward.custom_reward_function.name=my_reward"),
    (FULL, "reward.custom_reward_function.path=file://mine.py reward.custom_reward_function.name=my_reward"),
    (FULL, "reward.custom_reward_function.path=mine.py reward.custom_reward_function.name=sqrt"),
    (FULL, "reward.custom_reward_function.path=anything.py reward.custom_reward_function.name=any"),
    (FULL, "reward.custom_reward_function.path=null"),
    (FULL, "trainer.v1.sampler.custom_sampler.path=mine.py trainer.v1.sampler.custom_sampler.name=MySampler"),
    (FULL, "trainer.checkpoint_callback_class=arpo_verl.plugin.checkpoints.ReplayCheckpointCallback"),
    (FULL, "model.external_lib=json"),
    (FULL, "model.external_lib=[json,math]"),
    (FULL, "model.lora_adapter_path=somebody/adapter model.lora_rank=32"),
    (FULL, "rollout.val_kwargs.do_sample=false rollout.val_kwargs.temperature=0"),
    (FULL, "rollout.repetition_penalty=1"),
    (FULL, "actor.use_torch_compile=false actor.fsdp_config.use_torch_compile=false"),
    (FULL, "actor.strategy=fsdp actor.use_fused_kernels=true model.use_fused_kernels=true"),
    (FULL, "model.hf_config_path=./"),
]


@functools.cache
def composed(recipe):
    """As Hydra composes it; to parse what is typed behind it would take longer than all checks."""
    return pickle.dumps(compose_recipe(recipe, "data.train_files=t.json", "data.val_files=t.json"))


@pytest.fixture
def problems_of(monkeypatch, tmp_path):
    """What a recipe with these values is refused with."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from math import sqrt\nclass MySampler: ...\ndef my_reward(): ...\n")
    (tmp_path / "anything.py").write_text("from math import *\n")

    def problems(recipe: str, values: str) -> list[str]:
        config, found = pickle.loads(composed(recipe)), Problems()
        OmegaConf.set_struct(config, False)
        for option, _, value in (word.partition("=") for word in values.split()):
            OmegaConf.update(config, full_name(option), OmegaConf.create(f"value: {value}").value)
        if wrong := list(wrong_kinds(config)):
            return wrong
        with found.gather():
            check_rules(RULES, Recipe(config, KNOWN_MODELS["ByteDance-Seed/UI-TARS-1.5-7B"]))
        with found.gather():
            check_named(config)
        return [str(error) for error in found.errors]

    return problems


@pytest.mark.parametrize(("recipe", "values", "says"), REFUSED)
def test_a_value_that_fails_later_is_refused(recipe, values, says, problems_of):
    problems = problems_of(recipe, values)
    assert any(says in problem for problem in problems), problems


@pytest.mark.parametrize(("recipe", "values"), SOUND)
def test_a_sound_value_passes(recipe, values, problems_of):
    assert problems_of(recipe, values) == []
