"""Refuse values of single options that veRL, torch or the rollout engine refuse only later, or ignore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from arpo_verl.plugin.recipe.rules import Recipe, Rule, is_none, no, one_of, yes

_FSDP = "workers/engine/fsdp/transformer_impl.py"
_LOSSES = "trainer/ppo/core_algos.py"
_OLD_TRAINER = "trainer/ppo/ray_trainer.py"
_AGENT_LOOP = "trainer/ppo/v1/agent_loop_tq.py"
_QUEUE = "transfer_queue.backend.SimpleStorage"
_DTYPES = ("fp32", "bf16", "fp16", "float32", "bfloat16", "float16", "32", "16")
_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number(
    option: str,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    source: str = "",
    when: Mapping[str, Any] | None = None,
    may_be_null: bool = True,
) -> Rule:
    """Make the rule that an option is a number within bounds.

    Args:
        above: a bound that the number must exceed.
        when: further conditions, as in a rule.
    """

    def is_outside(value: Any) -> bool:
        if value is None:
            return not may_be_null
        if not _is_number(value):
            return True
        too_small = (least is not None and value < least) or (above is not None and value <= above)
        return too_small or (most is not None and value > most)

    bounds = [] if least is None else [f"at least {least:g}"]
    bounds += [] if above is None else [f"more than {above:g}"]
    bounds += [] if most is None else [f"at most {most:g}"]
    end = " or null" if may_be_null else ""
    return Rule(
        option, {**(when or {}), option: is_outside}, f"a number of {' and '.join(bounds)}{end}", "correct it", source
    )


def _dtype(option: str, source: str) -> Rule:
    return Rule(
        option,
        {option: lambda value: value is not None and str(value) not in _DTYPES},
        f"one of {', '.join(_DTYPES)}",
        source=source,
        known=_DTYPES,
    )


def _crosses_nodes(section: str, mode: str | None) -> Callable[[Recipe], bool]:
    """Return the check that an engine neither divides a node of the section nor fills whole nodes; None: any mode."""

    def crosses(recipe: Recipe) -> bool:
        engine, gpus_of_a_node = recipe.gpus_per_engine, recipe[f"{section}.n_gpus_per_node"]
        if mode not in (None, recipe.mode) or not _is_number(gpus_of_a_node) or gpus_of_a_node < 1:
            return False
        return bool(gpus_of_a_node % engine if engine <= gpus_of_a_node else engine % gpus_of_a_node)

    return crosses


def _is_not_data_s(name: str) -> Callable[[Recipe], bool]:
    return lambda recipe: bool(recipe[f"rollout.{name}"] != recipe[f"data.max_{name}"])


def _is_not_the_model_s(name: str) -> Callable[[Recipe], bool]:
    return lambda recipe: (
        recipe[f"actor.{name}"] is not None and bool(recipe[f"actor.{name}"]) != bool(recipe[f"model.{name}"])
    )


RANGE_RULES = (
    # --- the rollout engine --------------------------------------------------------------------------------------
    number("rollout.gpu_memory_utilization", above=0, most=1, may_be_null=False),
    number("rollout.max_num_seqs", least=1, may_be_null=False),
    number("rollout.max_num_batched_tokens", least=1, may_be_null=False),
    *(
        rule
        for section in ("rollout", "rollout.val_kwargs")
        for rule in (number(f"{section}.top_p", above=0, most=1), number(f"{section}.top_k", least=-1))
    ),
    number("rollout.val_kwargs.temperature", least=0),
    number("rollout.val_kwargs.n", least=1, may_be_null=False),
    number("rollout.agent.num_workers", least=1, may_be_null=False),
    number("rollout.checkpoint_engine.update_weights_bucket_megabytes", least=1, may_be_null=False),
    one_of("rollout.dtype", ("auto", "half", "float16", "bfloat16", "float", "float32")),
    one_of("rollout.logprobs_mode", ("processed_logprobs", "raw_logprobs")),
    one_of("rollout.scheduling_policy", ("fcfs", "priority")),
    one_of("rollout.mode", ("async", "sync"), "workers/rollout/base.py | assert (rollout_name, mode) in"),
    *(
        Rule(
            f"rollout.{name}",
            _is_not_data_s(name),
            f"data.max_{name}={{data.max_{name}}}: episodes are cut to it, while everything else expects the other",
            f"leave it out, and set data.max_{name}",
        )
        for name in ("prompt_length", "response_length")
    ),
    *(
        Rule(
            "rollout.tensor_model_parallel_size",
            _crosses_nodes(section, mode),
            f"such that engines of {{gpus_per_engine}} GPUs divide a node of {section}.n_gpus_per_node="
            f"{{{section}.n_gpus_per_node}} evenly, or fill whole nodes",
            f"set it to a divisor of {section}.n_gpus_per_node",
            "workers/rollout/replica.py | assert self.world_size % self.gpus_per_replica_node == 0",
        )
        for section, mode in (("trainer", None), ("rollout", "separate_async"))
    ),
    Rule(
        "rollout.val_kwargs.temperature",
        {"rollout.val_kwargs.do_sample": no, "rollout.val_kwargs.temperature": yes},
        "0 with rollout.val_kwargs.do_sample=false: the V1 trainer reads only the temperature, and would sample",
        "set it to 0, or actor_rollout_ref.rollout.val_kwargs.do_sample=true",
        f'{_AGENT_LOOP} | sampling_params["temperature"] = config.val_kwargs.temperature',
    ),
    Rule(
        "rollout.ignore_eos",
        {"rollout.ignore_eos": yes},
        "false: each reply would go on until gui_agent.max_reply_tokens",
        "leave it out",
        'workers/rollout/vllm_rollout/vllm_async_server.py | sampling_params.setdefault("ignore_eos"',
    ),
    # --- what neither the V1 trainer nor our agent loop reads ----------------------------------------------------
    *(
        Rule(option, {option: is_set}, f"{default}: nothing here reads it", remedy, source)
        for option, is_set, default, remedy, source in (
            ("rollout.do_sample", no, "true", "set actor_rollout_ref.rollout.temperature", ""),
            (
                "rollout.repetition_penalty",
                lambda value: value not in (None, 1),
                "1.0",
                "leave it out",
                f"{_AGENT_LOOP} | repetition_penalty=1.0,",
            ),
            ("rollout.trace.backend", yes, "null", "leave it out", f"{_AGENT_LOOP} | trace_this_sample = False"),
            (
                "rollout.checkpoint_manager_class",
                yes,
                "null",
                "leave it out",
                f'{_OLD_TRAINER} | rollout.get("checkpoint_manager_class")',
            ),
            ("rollout.multi_turn.max_assistant_turns", yes, "null", "set gui_agent.max_steps", ""),
            ("rollout.multi_turn.tool_config_path", yes, "null", "leave it out", ""),
            ("actor.use_rollout_log_probs", yes, "false", "leave it out", ""),
            (
                "actor.use_prefix_grouper",
                yes,
                "false",
                "leave it out",
                f'{_OLD_TRAINER} | getattr(self, "use_prefix_grouper", False)',
            ),
        )
    ),
    Rule(
        "actor.use_torch_compile",
        {"actor.use_torch_compile": no, "actor.fsdp_config.use_torch_compile": yes},
        "true: FSDP reads only the one in actor.fsdp_config",
        "set actor_rollout_ref.actor.fsdp_config.use_torch_compile",
        f"{_FSDP} | if self.engine_config.use_torch_compile",
    ),
    *(
        Rule(
            f"actor.{name}",
            _is_not_the_model_s(name),
            f"{{model.{name}}}, like actor_rollout_ref.model.{name}: only that one is read",
            f"leave it out, and set actor_rollout_ref.model.{name}",
            f"{_FSDP} | self.model_config.{name}",
        )
        for name in ("use_fused_kernels", "use_remove_padding")
    ),
    # --- the policy, and its optimizer ---------------------------------------------------------------------------
    number("model.lora_rank", least=0),
    number("model.lora_rank", most=512, when={"rollout.name": "vllm", "model.lora_rank": yes}),
    Rule(
        "model.lora.rank",
        {"model.lora.rank": yes},
        "0: FSDP would train all weights, and the engine would wait for an adapter",
        "set actor_rollout_ref.model.lora_rank",
        f"{_FSDP} | self._is_lora = self.model_config.lora_rank > 0",
    ),
    Rule(
        "model.lora_adapter_path",
        {"model.lora_adapter_path": yes, "model.lora_rank": no},
        "null without actor_rollout_ref.model.lora_rank: veRL would not load the adapter, and would train all weights",
        "set lora_rank to the adapter's rank",
        f"{_FSDP} | if self._is_lora:",
    ),
    number("model.lora_alpha", above=0, when={"model.lora_rank": yes}),
    _dtype("actor.fsdp_config.model_dtype", "utils/torch_dtypes.py | unexpected precision"),
    *(
        _dtype(f"actor.fsdp_config.mixed_precision.{name}_dtype", f"{_FSDP} | mixed_precision_config.get(")
        for name in ("param", "reduce", "buffer")
    ),
    Rule(
        "actor.fsdp_config.forward_only",
        {"actor.fsdp_config.forward_only": yes},
        "false: such a policy cannot be trained",
        "leave it out",
        "workers/engine_workers.py | when forward_only is in the engine config.",
    ),
    one_of("actor.optim.lr_scheduler_type", ("constant", "cosine"), f'{_FSDP} | elif lr_scheduler_type == "cosine":'),
    number("actor.optim.lr_warmup_steps_ratio", least=0, most=1, source=f"{_FSDP} | int(num_warmup_steps_ratio *"),
    number(
        "actor.optim.clip_grad",
        above=0,
        source=f"{_FSDP} | assert self.optimizer_config.clip_grad is not None",
        may_be_null=False,
    ),
    number(
        "actor.ppo_epochs",
        least=1,
        source="workers/engine_workers.py | mini_batch_size_per_gpu * epochs",
        may_be_null=False,
    ),
    number("actor.kl_loss_coef", least=0, when={"actor.use_kl_loss": yes}, may_be_null=False),
    *(number(f"actor.clip_ratio_{end}", least=0) for end in ("low", "high")),
    number("actor.loss_scale_factor", above=0, source=f"{_LOSSES} | loss /= loss_scale_factor"),
    # --- advantages, the critic, a reward model ------------------------------------------------------------------
    one_of(
        "algorithm.kl_penalty",
        [name + end for name in _KL for end in ("", "+")],
        f'{_LOSSES} | if kl_penalty in ("low_var_kl", "k3"):',
        {"algorithm.use_kl_in_reward": yes},
    ),
    one_of(
        "algorithm.kl_ctrl.type",
        ("fixed", "adaptive"),
        f'{_LOSSES} | elif kl_ctrl.type == "adaptive":',
        {"algorithm.use_kl_in_reward": yes},
    ),
    number(
        "algorithm.kl_ctrl.horizon",
        above=0,
        source=f"{_LOSSES} | horizon must be larger than 0",
        when={"algorithm.use_kl_in_reward": yes, "algorithm.kl_ctrl.type": "adaptive"},
        may_be_null=False,
    ),
    Rule(
        "algorithm.use_pf_ppo",
        {"algorithm.use_pf_ppo": yes},
        "false: it draws rows again, and the V1 trainer would give their advantages to other rows",
        "leave it out",
        f'{_OLD_TRAINER} | if config.get("use_pf_ppo", False):',
    ),
    Rule(
        "critic.enable",
        {"critic.enable": yes, "algorithm.adv_estimator": lambda name: name in ("replay_grpo", "grpo")},
        "false with algorithm.adv_estimator={algorithm.adv_estimator}, which does not use a critic's values",
        "leave it out, or set algorithm.adv_estimator=gae",
    ),
    Rule(
        "reward.reward_model.model_path",
        {"reward.reward_model.enable": yes, "reward.reward_model.model_path": is_none},
        "given with reward.reward_model.enable=true",
        "set it, or leave the reward model out",
        "experimental/reward_loop/reward_loop.py | copy_to_local(self.config.reward.reward_model.model_path)",
    ),
    *(
        Rule(
            option,
            {"replay.enable": yes, option: yes},
            "false with replay.enable=true: stored successes do not have the data for it",
            "leave it out, or set replay.enable=false",
        )
        for option in ("rollout.enable_rollout_routing_replay", "distillation.enabled")
    ),
    # --- the run -------------------------------------------------------------------------------------------------
    number(
        "trainer.total_training_steps",
        least=1,
        source="trainer/ppo/v1/trainer_base.py | self.global_steps <= self.total_training_steps:",
    ),
    Rule(
        "data.custom_cls.path",
        {"data.custom_cls.path": no},
        "given: veRL's own dataset cannot read task files",
        "leave it out",
    ),
    number("data.val_batch_size", least=0),
    number("data.dataloader_num_workers", least=0, may_be_null=False),
    Rule(
        "trainer.checkpoint_callback_class",
        {"replay.enable": yes, "trainer.checkpoint_callback_class": no},
        "given with replay.enable=true: checkpoints would not contain the store of successes",
        "leave it out",
        "trainer/ppo/checkpoint_callback.py | return CheckpointCallback(config=config)",
    ),
    number(f"{_QUEUE}.num_data_storage_units", least=1, may_be_null=False),
    Rule(
        f"{_QUEUE}.total_storage_size",
        lambda recipe: (
            recipe["transfer_queue.backend.storage_backend"] == "SimpleStorage"
            and (size := recipe[f"{_QUEUE}.total_storage_size"]) is not None
            and size < recipe["data.train_batch_size"] * recipe["rollout.n"]
        ),
        "at least the rows of a step, data.train_batch_size times rollout.n: the queue refuses more",
        "leave it out",
    ),
)
"""Rules about one option each, mostly."""
