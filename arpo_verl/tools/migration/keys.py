"""The table behind `arpo-verl convert`: every option of the ARPO reference and of EasyR1, and its conversion.

`docs/reference/migration.md` shows it. A row is `taken` if it becomes one of the recipe's options; `ruled` if several
of theirs make several of a recipe's (`rules.py`); `dropped` if nothing depends on it here; `lost` if the run will
differ without it. The defaults are theirs, for options that neither script nor YAML sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
FSDP = f"{ACTOR}.fsdp_config"


@dataclass(frozen=True)
class Key:
    """A key is one of their options.

    Attributes:
        name: name in the newest version; older names are in `RENAMED`.
        default: their default, whose type a value must have; None allows any plain type.
        to: the recipe's options that it makes; empty if it is dropped.
        note: unit, what differs, or why it is dropped.
        convert: function from their value to the recipe's.
        by_rule: whether `rules.py` makes the options, from several keys.
        harmless: values that can be dropped without a difference; None means all.
        optional: whether null is allowed, whatever the default.
        arpo_only: whether only the ARPO reference has it.
        differs: whether their default differs from the recipe `BASE`, so that the new recipe must set it.
    """

    name: str
    default: Any
    to: tuple[str, ...] = ()
    note: str = ""
    convert: Callable[[Any], Any] = lambda value: value
    by_rule: bool = False
    harmless: tuple[Any, ...] | None = None
    optional: bool = False
    arpo_only: bool = False
    differs: bool = False

    def matters(self, value: Any) -> bool:
        """Return whether the run differs if this value is dropped."""
        return not self.to and self.harmless is not None and value not in self.harmless


def _taken(name: str, default: Any, *to: str, note: str = "", **more: Any) -> Key:
    return Key(name, default, to, note, **more)


def _ruled(name: str, default: Any, *to: str, note: str = "", **more: Any) -> Key:
    return Key(name, default, to, note, by_rule=True, **more)


def _dropped(name: str, default: Any, why: str, **more: Any) -> Key:
    return Key(name, default, note=why, **more)


def _lost(name: str, default: Any, why: str, *harmless: Any) -> Key:
    return Key(name, default, note=why, harmless=harmless or (default,))


_EPISODE = "rows of a dataset; here a row is a desktop's task"
_EVALUATED = "an episode is evaluated by its task's own evaluator, on the desktop"
_KL = (f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type", "algorithm.use_kl_in_reward")
_KL_REWARD = ("algorithm.kl_penalty", "algorithm.kl_ctrl.kl_coef")
_MICRO = "counts rollouts, in both"
_PROMPTS = "counts prompts (tasks), in both; times n it is rollouts"
_CRITIC = (
    "strategy global_batch_size micro_batch_size_per_device_for_update micro_batch_size_per_device_for_experience "
    "max_grad_norm cliprange_value ppo_epochs padding_free ulysses_size loss_avg_mode dynamic_batching "
    "model.model_path model.tokenizer_path model.override_config model.enable_gradient_checkpointing "
    "model.trust_remote_code model.freeze_vision_tower model.grounding_model_path model.lora.rank model.lora.alpha "
    "model.lora.target_modules model.lora.exclude_modules optim.lr optim.betas optim.weight_decay optim.strategy "
    "optim.lr_warmup_ratio optim.lr_warmup_steps optim.min_lr_ratio optim.lr_scheduler_type optim.warmup_style "
    "fsdp.enable_full_shard fsdp.enable_cpu_offload fsdp.enable_rank0_init fsdp.use_orig_params fsdp.torch_dtype "
    "fsdp.fsdp_size fsdp.mp_param_dtype fsdp.mp_reduce_dtype fsdp.mp_buffer_dtype offload.offload_params "
    "offload.offload_optimizer"
).split()
_REF = (
    "strategy fsdp.enable_full_shard fsdp.enable_rank0_init fsdp.use_orig_params fsdp.torch_dtype fsdp.fsdp_size "
    "fsdp.mp_param_dtype fsdp.mp_reduce_dtype fsdp.mp_buffer_dtype offload.offload_optimizer"
).split()


def _minus_one(value: int | None) -> int:
    return -1 if value is None else value


KEYS: tuple[Key, ...] = (
    # --- data --------------------------------------------------------------------------------------------------
    _ruled("data.train_files", "", "data.train_files", note="a JSON index of tasks; a dataset's name is lost"),
    _ruled("data.val_files", "", "data.val_files", note="the same"),
    *(_dropped(f"data.{name}_key", None, _EPISODE) for name in ("prompt", "answer", "image", "video")),
    _dropped("data.image_dir", None, _EPISODE),
    _dropped("data.video_fps", 2.0, _EPISODE),
    _ruled(
        "data.max_prompt_length",
        512,
        "data.max_prompt_length",
        "data.max_response_length",
        f"{ROLLOUT}.max_model_len",
        note="ARPO: the whole episode's; here max_prompt_length is the first turn's. EasyR1: dropped, a question's",
    ),
    _ruled("data.max_response_length", 512, "gui_agent.max_reply_tokens", note="of one reply"),
    _taken("data.rollout_batch_size", 512, "data.train_batch_size", note=_PROMPTS, differs=True),
    _dropped("data.mini_rollout_batch_size", None, "veRL draws as many prompts as a filtered batch still lacks"),
    _dropped("data.val_batch_size", -1, "veRL validates in one batch, and desktops take turns"),
    _dropped("data.format_prompt", None, "gui_agent.model_family has the prompt that the policy was trained with"),
    _lost("data.override_chat_template", None, "set actor_rollout_ref.model.custom_chat_template to its text"),
    _taken("data.shuffle", True, "data.shuffle"),
    _taken("data.seed", 1, "data.seed", differs=True),
    _ruled("data.min_pixels", 262144, "data.mm_processor_kwargs.min_pixels", optional=True),
    _ruled("data.max_pixels", 4194304, "data.mm_processor_kwargs.max_pixels", optional=True),
    _dropped("data.filter_overlong_prompts", True, "a prompt that does not fit ends the run with its task's name"),
    _dropped("data.filter_overlong_prompts_workers", 16, "nothing is filtered"),
    _dropped("data.return_raw_input_ids", False, "nothing of theirs reads it"),
    _dropped("data.return_raw_prompt", False, "nothing of theirs reads it"),
    # --- algorithm ---------------------------------------------------------------------------------------------
    _ruled("algorithm.adv_estimator", "grpo", "algorithm.adv_estimator", note="grpo is replay_grpo"),
    _taken("algorithm.gamma", 1.0, "algorithm.gamma"),
    _taken("algorithm.lam", 1.0, "algorithm.lam"),
    _ruled("algorithm.disable_kl", False, *_KL, note="true: no KL term, no reference policy"),
    _ruled("algorithm.use_kl_loss", False, *_KL, note="false, with disable_kl=false: the KL term is in the reward"),
    _ruled("algorithm.kl_penalty", "kl", f"{ACTOR}.kl_loss_type", _KL_REWARD[0], note="of the KL term"),
    _ruled("algorithm.kl_coef", 1e-3, f"{ACTOR}.kl_loss_coef", _KL_REWARD[1], note="of the KL term; 0: none"),
    _ruled("algorithm.kl_type", "fixed", "algorithm.kl_ctrl.type", note="of the KL term in the reward"),
    _ruled("algorithm.kl_horizon", 10000.0, "algorithm.kl_ctrl.horizon", note="the same"),
    _ruled("algorithm.kl_target", 0.1, "algorithm.kl_ctrl.target_kl", note="the same"),
    _taken("algorithm.online_filtering", False, "algorithm.filter_groups.enable", note="drops groups of equal rewards"),
    _dropped("algorithm.filter_key", "overall", "veRL's filter looks at the reward"),
    _lost("algorithm.filter_low", 0.01, "veRL's filter has no bounds: it drops a group whose rewards are equal"),
    _lost("algorithm.filter_high", 0.99, "veRL's filter has no bounds"),
    _dropped(
        "algorithm.enable_replay",
        False,
        "the reference never reads it and always replays, and so will the recipe; replay.enable=false is GRPO",
        arpo_only=True,
    ),
    # --- worker.actor ------------------------------------------------------------------------------------------
    _dropped("worker.hybrid_engine", True, "there is no other engine"),
    _dropped("worker.actor.strategy", "fsdp", "fsdp2, which shards alike"),
    _taken("worker.actor.global_batch_size", 256, f"{ACTOR}.ppo_mini_batch_size", note=_PROMPTS, differs=True),
    _ruled(
        "worker.actor.micro_batch_size_per_device_for_update",
        4,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        f"{ACTOR}.loss_agg_mode",
        note=f"{_MICRO}. ARPO's loss is a mean of micro batches: with 1 a mean of rollouts, however long each is",
    ),
    _taken(
        "worker.actor.micro_batch_size_per_device_for_experience",
        16,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        note=_MICRO,
        differs=True,
    ),
    _taken("worker.actor.max_grad_norm", 1.0, f"{ACTOR}.optim.clip_grad"),
    _taken("worker.actor.clip_ratio_low", 0.2, f"{ACTOR}.clip_ratio_low"),
    _taken("worker.actor.clip_ratio_high", 0.3, f"{ACTOR}.clip_ratio_high"),
    _taken("worker.actor.clip_ratio_dual", 3.0, f"{ACTOR}.clip_ratio_c"),
    _ruled("worker.actor.clip_ratio", None, f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high", note="both"),
    _taken("worker.actor.entropy_coeff", 0.0, f"{ACTOR}.entropy_coeff"),
    _ruled("worker.actor.loss_type", "default", f"{ACTOR}.policy_loss.loss_mode", note="default is vanilla"),
    _ruled("worker.actor.loss_avg_mode", "token", f"{ACTOR}.loss_agg_mode", note="token-mean or seq-mean-token-mean"),
    _taken("worker.actor.ppo_epochs", 1, f"{ACTOR}.ppo_epochs", note="passes over a batch"),
    _taken("worker.actor.padding_free", True, f"{MODEL}.use_remove_padding"),
    _dropped("worker.actor.dynamic_batching", True, "how rollouts are packed; the gradient is the same"),
    _taken("worker.actor.ulysses_size", 1, f"{FSDP}.ulysses_sequence_parallel_size", differs=True),
    _taken("worker.actor.use_torch_compile", True, f"{ACTOR}.use_torch_compile", f"{FSDP}.use_torch_compile"),
    _taken("worker.actor.tau_positive", 1.0, f"{ACTOR}.tau_pos"),
    _taken("worker.actor.tau_negative", 1.05, f"{ACTOR}.tau_neg"),
    _ruled("worker.actor.model.model_path", None, f"{MODEL}.path", note="must be given"),
    _taken("worker.actor.model.tokenizer_path", None, f"{MODEL}.tokenizer_path"),
    _taken("worker.actor.model.override_config", {}, f"{MODEL}.override_config"),
    _taken("worker.actor.model.enable_gradient_checkpointing", True, f"{MODEL}.enable_gradient_checkpointing"),
    _taken(
        "worker.actor.model.trust_remote_code",
        True,
        f"{MODEL}.trust_remote_code",
        note="only if it is set: no policy here brings its own code",
    ),
    _lost("worker.actor.model.freeze_vision_tower", False, "veRL 0.9.1 always trains the image encoder"),
    _dropped("worker.actor.model.grounding_model_path", None, "only in an early version of ARPO", arpo_only=True),
    _taken("worker.actor.model.lora.rank", 0, f"{MODEL}.lora_rank"),
    _taken("worker.actor.model.lora.alpha", 64, f"{MODEL}.lora_alpha", differs=True),
    _taken("worker.actor.model.lora.target_modules", "all-linear", f"{MODEL}.target_modules"),
    _taken("worker.actor.model.lora.exclude_modules", None, f"{MODEL}.exclude_modules"),
    _taken("worker.actor.optim.lr", 1e-6, f"{ACTOR}.optim.lr"),
    _taken("worker.actor.optim.betas", (0.9, 0.999), f"{ACTOR}.optim.betas", convert=list),
    _taken("worker.actor.optim.weight_decay", 1e-2, f"{ACTOR}.optim.weight_decay"),
    _dropped(
        "worker.actor.optim.strategy",
        "adamw",
        "adamw_bf16 keeps weights and moments in bf16 and adds up what rounding loses; veRL does not have it, and "
        "keeps them in fp32 (more memory, nothing lost)",
    ),
    _taken("worker.actor.optim.lr_warmup_ratio", 0.0, f"{ACTOR}.optim.lr_warmup_steps_ratio"),
    _taken("worker.actor.optim.lr_warmup_steps", None, f"{ACTOR}.optim.lr_warmup_steps", convert=_minus_one),
    _taken("worker.actor.optim.min_lr_ratio", None, f"{ACTOR}.optim.min_lr_ratio", convert=lambda x: x or 0.0),
    _taken("worker.actor.optim.lr_scheduler_type", "constant", f"{ACTOR}.optim.lr_scheduler_type"),
    _dropped("worker.actor.optim.warmup_style", "constant", "their trainer never reads it: constant"),
    _taken("worker.actor.fsdp.enable_full_shard", True, f"{FSDP}.reshard_after_forward"),
    _taken("worker.actor.fsdp.enable_cpu_offload", False, f"{FSDP}.offload_policy"),
    _dropped("worker.actor.fsdp.enable_rank0_init", True, "how weights are loaded"),
    _dropped("worker.actor.fsdp.use_orig_params", False, "only FSDP's first version has it"),
    _dropped("worker.actor.fsdp.torch_dtype", None, "weights stay in fp32, see worker.actor.optim.strategy"),
    _taken("worker.actor.fsdp.fsdp_size", -1, f"{FSDP}.fsdp_size"),
    _taken("worker.actor.fsdp.mp_param_dtype", "bf16", f"{FSDP}.mixed_precision.param_dtype"),
    _taken("worker.actor.fsdp.mp_reduce_dtype", "fp32", f"{FSDP}.mixed_precision.reduce_dtype"),
    _taken("worker.actor.fsdp.mp_buffer_dtype", "fp32", f"{FSDP}.mixed_precision.buffer_dtype"),
    _taken("worker.actor.offload.offload_params", False, f"{FSDP}.param_offload", differs=True),
    _taken("worker.actor.offload.offload_optimizer", False, f"{FSDP}.optimizer_offload", differs=True),
    # --- the other workers -------------------------------------------------------------------------------------
    *(_dropped(f"worker.critic.{name}", None, "no estimator that is converted has a critic") for name in _CRITIC),
    _taken("worker.ref.fsdp.enable_cpu_offload", False, "actor_rollout_ref.ref.fsdp_config.offload_policy"),
    _taken("worker.ref.offload.offload_params", False, "actor_rollout_ref.ref.fsdp_config.param_offload"),
    *(_dropped(f"worker.ref.{name}", None, "as the actor's") for name in _REF),
    *(_dropped(f"worker.reward.{name}", None, _EVALUATED) for name in ("reward_type", "reward_function")),
    _dropped("worker.reward.reward_function_kwargs", {}, _EVALUATED),
    _dropped("worker.reward.skip_special_tokens", True, _EVALUATED),
    _dropped("worker.reward.num_cpus", 1, _EVALUATED),
    _taken("worker.rollout.name", "vllm", f"{ROLLOUT}.name"),
    _taken("worker.rollout.n", 1, f"{ROLLOUT}.n", note="rollouts of a task, its group", differs=True),
    _taken("worker.rollout.temperature", 1.0, f"{ROLLOUT}.temperature"),
    _taken("worker.rollout.top_p", 1.0, f"{ROLLOUT}.top_p"),
    _taken("worker.rollout.top_k", -1, f"{ROLLOUT}.top_k"),
    _taken("worker.rollout.seed", 1, f"{ROLLOUT}.seed", differs=True),
    _ruled(
        "worker.rollout.limit_images",
        0,
        "gui_agent.max_screenshots",
        note="ARPO: an episode's images, at most its steps. EasyR1: dropped, a row's",
    ),
    _taken("worker.rollout.dtype", "bf16", f"{ROLLOUT}.dtype", convert=lambda x: {"bf16": "bfloat16"}.get(x, x)),
    _taken("worker.rollout.gpu_memory_utilization", 0.6, f"{ROLLOUT}.gpu_memory_utilization"),
    _taken("worker.rollout.ignore_eos", False, f"{ROLLOUT}.ignore_eos"),
    _taken("worker.rollout.enforce_eager", False, f"{ROLLOUT}.enforce_eager"),
    _dropped("worker.rollout.enable_chunked_prefill", False, "only before vLLM's V1; long prompts come in chunks"),
    _taken("worker.rollout.tensor_parallel_size", 2, f"{ROLLOUT}.tensor_model_parallel_size"),
    _dropped("worker.rollout.max_model_len", None, "an episode's: data.max_prompt_length + max_response_length"),
    _dropped(
        "worker.rollout.max_num_batched_tokens",
        8192,
        "ARPO never passes it to vLLM, and EasyR1's suits questions; osworld_full's suits screenshots",
    ),
    _dropped("worker.rollout.max_num_seqs", 1024, "how many requests an engine takes at once"),
    _taken("worker.rollout.disable_log_stats", True, f"{ROLLOUT}.disable_log_stats"),
    _dropped("worker.rollout.disable_tqdm", False, "a progress bar"),
    _dropped("worker.rollout.do_sample", True, "their temperature decides it"),
    _dropped("worker.rollout.free_cache_engine", True, "veRL does so by default"),
    _ruled(
        "worker.rollout.val_override_config",
        {},
        *(f"{ROLLOUT}.val_kwargs.{name}" for name in ("n", "temperature", "top_p", "top_k", "do_sample")),
        note="other values are as in training; ARPO's n is then 1",
    ),
    # --- env ---------------------------------------------------------------------------------------------------
    _taken(
        "env.num_envs",
        32,
        "environment.num_desktops",
        arpo_only=True,
        note="rollouts of a step, or fewer",
        differs=True,
    ),
    _taken(
        "env.max_steps",
        15,
        "gui_agent.max_steps",
        arpo_only=True,
        note="ARPO counts actions, here replies: one with two actions is one step",
    ),
    _taken("env.screen_size", (1920, 1080), "environment.screen_size", arpo_only=True, convert=list),
    # --- trainer -----------------------------------------------------------------------------------------------
    _taken("trainer.total_epochs", 15, "trainer.total_epochs", note="ARPO's default is 10"),
    _taken("trainer.max_steps", None, "trainer.total_training_steps"),
    _taken("trainer.project_name", "easy_r1", "trainer.project_name", differs=True),
    _ruled("trainer.experiment_name", "demo", "trainer.experiment_name", note="also the run's folder in runs/"),
    _ruled("trainer.logger", ("console", "wandb"), "trainer.logger", note="and `file`, which the viewer reads"),
    _taken("trainer.nnodes", 1, "trainer.nnodes", differs=True),
    _taken("trainer.n_gpus_per_node", 8, "trainer.n_gpus_per_node"),
    _dropped("trainer.max_try_make_batch", 20, "veRL's filter goes on until the batch is full"),
    _taken("trainer.critic_warmup", 0, "trainer.critic_warmup"),
    _taken("trainer.val_freq", -1, "trainer.test_freq", note="steps", differs=True),
    _taken("trainer.val_before_train", True, "trainer.val_before_train"),
    _taken("trainer.val_only", False, "trainer.val_only"),
    _taken("trainer.val_generations_to_log", 0, "trainer.log_val_generations"),
    _taken("trainer.save_freq", -1, "trainer.save_freq", note="steps", differs=True),
    _taken(
        "trainer.save_limit", -1, "trainer.max_actor_ckpt_to_keep", convert=lambda n: n if n > 0 else None, differs=True
    ),
    _ruled("trainer.save_model_only", False, f"{ACTOR}.checkpoint.save_contents", note="true: [model]"),
    _ruled("trainer.save_checkpoint_path", None, "trainer.default_local_dir", note="null: checkpoints/ in run_dir"),
    _lost("trainer.load_checkpoint_path", None, "veRL cannot resume from it; merge it, and start with that policy"),
    _taken(
        "trainer.find_last_checkpoint",
        True,
        "trainer.resume_mode",
        convert=lambda on: "auto" if on else "disable",
    ),
    _dropped("trainer.ray_timeline", None, "a profile; veRL's is ray_kwargs.timeline_json_file"),
    _dropped("trainer.remove_previous_ckpt", False, "see trainer.save_limit"),
    _dropped("trainer.remove_ckpt_after_load", False, "nothing is loaded, so nothing is removed"),
    _dropped("trainer.report_kl", True, "only reports"),
)

RENAMED = {
    "data.system_prompt": "data.format_prompt",
    "data.format_prompt_path": "data.format_prompt",
    "trainer.total_episodes": "trainer.total_epochs",
    "trainer.test_freq": "trainer.val_freq",
    "trainer.val_generations_to_log_to_wandb": "trainer.val_generations_to_log",
    "trainer.del_local_ckpt_after_load": "trainer.remove_ckpt_after_load",
    "worker.reward.score_function": "worker.reward.reward_function",
    "worker.reward.score_function_kwargs": "worker.reward.reward_function_kwargs",
    "worker.reward.compute_score": "worker.reward.reward_function",
    "worker.actor.use_kl_loss": "algorithm.use_kl_loss",
    "worker.actor.kl_loss_coef": "algorithm.kl_coef",
    "worker.actor.kl_loss_type": "algorithm.kl_penalty",
    **{
        f"worker.{role}.{old}": f"worker.{role}.{new}"
        for role in ("actor", "critic")
        for old, new in {
            "ulysses_sequence_parallel_size": "ulysses_size",
            "optim.lr_warmup_steps_ratio": "optim.lr_warmup_ratio",
            "fsdp.param_offload": "offload.offload_params",
            "fsdp.optimizer_offload": "offload.offload_optimizer",
        }.items()
    },
    **{
        f"worker.{role}.offload.{old}": f"worker.{role}.offload.{new}"
        for role in ("actor", "critic", "ref")
        for old, new in {"param_offload": "offload_params", "optimizer_offload": "offload_optimizer"}.items()
    },
}
"""Older name -> newest name of the same option."""

ARPO_DEFAULTS = {"worker.actor.padding_free": False, "trainer.total_epochs": 10}
"""Defaults of the reference that differ from the newest EasyR1's."""

_BY_NAME = {key.name: key for key in KEYS}


def find_key(name: str) -> Key | None:
    """Return the row of one of their options, by any of its names."""
    return _BY_NAME.get(RENAMED.get(name, name))
