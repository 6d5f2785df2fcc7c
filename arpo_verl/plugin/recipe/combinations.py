"""Refuse options that contradict each other, and options that nothing reads, before anything starts.

This half of the table covers what a run does and what it learns from; `sizes.py` covers batches, GPUs and engines. A
rule names the line of veRL 0.9.1 that it depends on. `tests/plugin/recipe/test_combinations.py` looks for each line in
the installed veRL, so that an upgrade that fixes one shows which rule can go.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from arpo_verl.footprint import MANAGER
from arpo_verl.plugin.recipe.ranges import RANGE_RULES
from arpo_verl.plugin.recipe.rules import Recipe, Rule, is_none, no, one_of, yes
from arpo_verl.plugin.recipe.sizes import SIZE_RULES
from arpo_verl.replay.config import SAMPLERS
from arpo_verl.rollout.reward_result import RESERVED
from arpo_verl.rollout.scoring import EXTRA

_TRAINER = "trainer/ppo/v1/trainer_base.py"
_OLD_TRAINER = "trainer/ppo/ray_trainer.py"
_BUFFER = "trainer/ppo/v1/replay_buffer.py"
_LOSSES = "trainer/ppo/core_algos.py"
_CORRECTION = "trainer/ppo/rollout_corr_helper.py"
_IS, _RS = "algorithm.rollout_correction.rollout_is", "algorithm.rollout_correction.rollout_rs"
_SAMPLER = "trainer.v1.sampler.custom_sampler"
_FULL = "or set gui_agent.context=full, and gui_agent.harness=null"
_OUR_REWARD = "pkg://arpo_verl.reward"

LOGGERS = tuple("console file tensorboard wandb swanlab mlflow vemlp_wandb clearml trackio rl_insight tracking".split())
_SAVED = ("model", "optimizer", "extra", "hf_model")
_KL = [name + end for name in ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3") for end in ("", "+")]
# Estimators that fail with a group of one or give it no advantage (others use its reward as it is), and those that need
# something that the V1 trainer does not compute.
_OF_GROUPS = ("grpo_passk", "rloo_vectorized")
_WITHOUT_V1 = ("remax", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")


def _strangers(values: Any, known: Collection[str]) -> list[str]:
    values = [values] if isinstance(values, str) else values
    return [value for value in values or () if value not in known]


def _loads_no_plugin(recipe: Recipe) -> bool:
    """Read the two variables as `verl/__init__.py` does."""
    plugins = (recipe["VERL_USE_EXTERNAL_PLUGINS"] or "auto").strip().lower()
    modules = (recipe["VERL_USE_EXTERNAL_MODULES"] or "").split(",")
    loads = plugins == "auto" or "arpo_verl" in [name.strip() for name in plugins.split(",")]
    return not loads and "arpo_verl.plugin" not in modules


def _lacks_checkpoint(recipe: Recipe) -> bool:
    path = str(recipe["trainer.resume_from_path"] or "")
    return re.search(r"global_step_\d+$", path) is None or not Path(path, "actor").is_dir()


def _lacks_metric(recipe: Recipe) -> bool:
    """Return whether episodes lack the value that groups are filtered by. A user's reward function may return any."""
    metric = recipe["algorithm.filter_groups.metric"]
    is_ours = recipe["reward.custom_reward_function.path"] == _OUR_REWARD
    return bool(metric and metric != "reward" and (metric in RESERVED or (is_ours and metric not in EXTRA)))


def _has_unread_clip(recipe: Recipe) -> bool:
    clip, pair = recipe["actor.clip_ratio"], (recipe["actor.clip_ratio_low"], recipe["actor.clip_ratio_high"])
    is_read = None in pair or str(recipe["actor.policy_loss.loss_mode"]).startswith("dppo")
    return not is_read and clip not in (0.2, *pair)


ENGINE = Rule(
    "model_engine",
    {"model_engine": lambda name: name != "dp"},
    "dp, which is FSDP: we never tried rows of screenshots with veRL's other engines",
    "leave it out",
)
"""All other rules assume this one."""

PLUGIN_RULES = (
    Rule(
        "trainer.use_v1",
        {"trainer.use_v1": no},
        "true: the sampler, the desktops and replay need the V1 trainer",
        "leave it out",
        "trainer/main_ppo.py | if config.trainer.use_v1:",
    ),
    one_of(
        "trainer.v1.trainer_mode", ("sync", "colocate_async", "separate_async"), f"{_TRAINER} | def register_trainer"
    ),
    Rule(
        "VERL_USE_EXTERNAL_PLUGINS",
        _loads_no_plugin,
        "auto, or a list with arpo_verl: veRL's workers would not know the agent loop gui_agent",
        "unset it in the environment",
        "__init__.py | _plugins_policy = os.getenv(",
    ),
    Rule(
        "rollout.agent.default_agent_loop",
        {"rollout.agent.default_agent_loop": lambda name: name != "gui_agent"},
        "gui_agent: veRL's own agent loops cannot use a desktop",
        "leave it out, and let `- arpo` come after ppo_trainer in the defaults",
    ),
    Rule(
        "rollout.agent.agent_loop_manager_class",
        {"rollout.agent.agent_loop_manager_class": lambda name: name != MANAGER},
        f"{MANAGER}: with another one, the trainer would wait forever when a rollout worker dies",
        "leave it out",
        "trainer/main_ppo.py | load_class_from_fqn(manager_class_fqn",
    ),
    *(
        Rule(
            f"{_SAMPLER}.{name}",
            {"replay.enable": yes, f"{_SAMPLER}.{name}": no},
            "our sampler's with replay.enable=true: veRL's own samplers replay nothing",
            "leave it out, or set replay.enable=false",
            f'{_TRAINER} | custom_sampler is not None and custom_sampler.get("path")',
        )
        for name in ("path", "name")
    ),
    *(
        Rule(
            option,
            {option: lambda value: value is not None},
            f"null: the V1 trainer reads only {instead}",
            f"set {instead}",
            "experimental/reward_loop/reward_loop.py | def migrate_legacy_reward_impl(config):",
        )
        for option, instead in (
            ("custom_reward_function.path", "reward.custom_reward_function.path"),
            ("reward_model.enable", "reward.reward_model.enable"),
            ("reward_model.reward_manager", "reward.reward_manager.name"),
        )
    ),
)
"""Which trainer runs, and whether our parts are in it."""

RUN_RULES = (
    Rule(
        "trainer.val_before_train",
        {"trainer.val_only": yes, "trainer.val_before_train": no},
        "true with trainer.val_only=true: otherwise veRL does not read val_only, and trains",
        "set it to true, or leave trainer.val_only out",
        f'{_TRAINER} | if self.config.trainer.get("val_only", False):',
    ),
    one_of("trainer.resume_mode", ("auto", "disable", "resume_path"), f"{_TRAINER} | Unknown resume mode"),
    Rule(
        "trainer.resume_from_path",
        lambda recipe: recipe["trainer.resume_mode"] == "resume_path" and _lacks_checkpoint(recipe),
        "the folder global_step_N of a checkpoint, with actor/ in it, with trainer.resume_mode=resume_path",
        "name one that is here, or set trainer.resume_mode=auto",
        f'{_TRAINER} | self.global_steps = int(global_step_folder.split("global_step_")[-1])',
    ),
    Rule(
        "trainer.resume_mode",
        {"trainer.resume_from_path": yes, "trainer.resume_mode": lambda mode: mode in ("auto", "disable")},
        "resume_path with trainer.resume_from_path={trainer.resume_from_path}, which no other mode reads",
        "set it to resume_path, or leave trainer.resume_from_path out",
        f'{_TRAINER} | elif self.config.trainer.resume_mode == "resume_path":',
    ),
    Rule(
        "actor.checkpoint.load_contents",
        {
            "trainer.resume_mode": lambda mode: mode != "disable",
            "actor.checkpoint.load_contents": lambda names: "model" not in (names or ()),
        },
        "a list with `model` if the run may resume: otherwise it would go on with the weights that it began with",
        "add `model` to actor_rollout_ref.actor.checkpoint.save_contents, or set trainer.resume_mode=disable",
        'utils/checkpoint/checkpoint_manager.py | return "model" in self.checkpoint_load_contents',
    ),
    Rule(
        "actor.checkpoint.save_contents",
        {"actor.checkpoint.save_contents": lambda names: _strangers(names, _SAVED)},
        f"a list of {', '.join(_SAVED)}: veRL silently ignores all other names",
        "correct it",
        'utils/checkpoint/checkpoint_manager.py | return "model" in self.checkpoint_save_contents',
    ),
    Rule(
        "actor.checkpoint.async_save",
        {"actor.checkpoint.async_save": yes},
        "false: veRL would never note which checkpoint to resume from, and FSDP does not save in the background",
        "leave it out",
        f'{_TRAINER} | if actor_ckpt_cfg.get("async_save", False):',
    ),
    Rule(
        "trainer.total_epochs",
        {"trainer.total_epochs": lambda number: number < 1, "trainer.val_only": no},
        "1 or more: without an epoch veRL trains nothing",
        "to only validate, set trainer.val_only=true",
        f"{_TRAINER} | while current_epoch < self.config.trainer.total_epochs",
    ),
    Rule(
        "trainer.total_training_steps",
        lambda recipe: recipe.steps and (recipe["trainer.total_training_steps"] or 0) > recipe.steps,
        "at most {steps}, the steps of trainer.total_epochs={trainer.total_epochs}: veRL would end after them without "
        "a last checkpoint and validation",
        "raise trainer.total_epochs, or leave it out",
        f"{_TRAINER} | is_last_step = self.global_steps >= self.total_training_steps",
    ),
    Rule(
        "trainer.critic_warmup",
        {"trainer.critic_warmup": yes, "has_critic": no},
        "0 without a critic: the policy is not trained before that step",
        "leave it out",
        f"{_TRAINER} | if self.config.trainer.critic_warmup <= self.global_steps:",
    ),
    Rule(
        "trainer.logger",
        {"trainer.logger": lambda names: _strangers(names, LOGGERS)},
        f"of {', '.join(LOGGERS)}",
        "correct it",
        "utils/tracking.py | assert backend in self.supported_backend",
    ),
)
"""What a run does, where it begins and where it ends."""

LEARNING_RULES = (
    Rule(
        "rollout.n",
        {"rollout.n": 1, "replay.enable": yes},
        "2 or more with replay.enable=true: every advantage of a group of one is 0",
        "set it to 8 as in the paper, or set replay.enable=false",
    ),
    Rule(
        "rollout.n",
        {"rollout.n": 1, "replay.enable": no, "algorithm.adv_estimator": lambda name: name in _OF_GROUPS},
        "2 or more with algorithm.adv_estimator={algorithm.adv_estimator}: a group of one has nothing to compare",
        "raise it",
        f"{_LOSSES} | / (c - 1).clamp_min(1)) * (c > 1)",
    ),
    Rule(
        "rollout.n",
        {"rollout.n": 1, "algorithm.filter_groups.enable": yes},
        "2 or more with algorithm.filter_groups.enable=true: a group of one is never filtered",
        "raise it, or leave the filter out",
        f"{_BUFFER} | if len(values) > 1 and float(np.std(values)) == 0.0 else None",
    ),
    Rule(
        "algorithm.filter_groups.metric",
        lambda recipe: recipe["algorithm.filter_groups.enable"] and _lacks_metric(recipe),
        f"reward, or one of {', '.join(EXTRA)}: episodes have no other reward",
        "set it to reward",
        f"{_BUFFER} | Finished groups are missing DAPO metric",
    ),
    Rule(
        "algorithm.filter_groups.enable",
        {
            "algorithm.filter_groups.enable": yes,
            "reward.reward_model.enable": yes,
            "reward.reward_model.enable_resource_pool": no,
        },
        "false with a reward model on the trainer's GPUs, which scores after groups are filtered",
        "set reward.reward_model.enable_resource_pool=true",
        f"{_TRAINER} | streaming_reward_path = not reward_model.enable or reward_model.enable_resource_pool",
    ),
    Rule(
        "algorithm.adv_estimator",
        {"algorithm.adv_estimator": lambda name: name in _WITHOUT_V1},
        "another one: the V1 trainer does not compute what {algorithm.adv_estimator} needs",
        "set it to replay_grpo or grpo",
        f'{_TRAINER} | fields = ["uid", "response_mask", "rm_scores", "rollout_log_probs", "old_log_probs"',
    ),
    Rule(
        "critic.enable",
        {"algorithm.adv_estimator": "gae", "has_critic": no},
        "true or null with algorithm.adv_estimator=gae, which needs the critic's values",
        "leave it out, or set algorithm.adv_estimator=replay_grpo",
        f'{_OLD_TRAINER} | values=data.batch["values"],',
    ),
    Rule(
        "algorithm.rollout_correction.bypass_mode",
        {"algorithm.rollout_correction.bypass_mode": yes},
        "false: the V1 trainer uses the rollout's log-probs as the policy's but never installs this mode's loss, so "
        "rollout_is, rollout_rs and loss_type do nothing",
        "set it to false; algorithm.rollout_correction.rollout_is=token corrects for the rollout's policy",
        f'{_TRAINER} | data["old_log_probs"] = data.pop("rollout_log_probs")',
    ),
    Rule(
        "actor.policy_loss.loss_mode",
        {"actor.policy_loss.loss_mode": "bypass_mode"},
        "another loss: the V1 trainer does not pass algorithm.rollout_correction to this one",
        "leave it out",
        f'{_CORRECTION} | policy_loss_config["loss_mode"] = "bypass_mode"',
    ),
    *(
        Rule(
            "rollout.calculate_log_probs",
            {option: yes, "rollout.calculate_log_probs": no},
            f"true with {option}={{{option}}}: veRL skips it if a batch has no log-probs",
            f"leave it out, or set {option}=null",
            f'{_TRAINER} | rollout_corr_config is not None and "rollout_log_probs" in data.batch',
        )
        for option in (_IS, _RS)
    ),
    one_of(_IS, ("token", "sequence"), f'{_CORRECTION} | valid_is_levels = {{"token", "sequence"}}'),
    Rule(
        f"{_RS}_threshold",
        {_RS: yes, f"{_RS}_threshold": is_none},
        f"given with {_RS}={{{_RS}}}",
        f"set a bound, or {_RS}=null",
        f"{_CORRECTION} | rollout_rs_threshold must be provided for rejection sampling.",
    ),
    one_of(
        "actor.kl_loss_type", _KL, f'{_LOSSES} | if kl_penalty in ("low_var_kl", "k3"):', {"actor.use_kl_loss": yes}
    ),
    Rule(
        "actor.clip_ratio",
        _has_unread_clip,
        "left out: the loss reads actor.clip_ratio_low={actor.clip_ratio_low} and "
        "actor.clip_ratio_high={actor.clip_ratio_high} instead",
        "set these two",
        f"{_LOSSES} | clip_ratio_low = config.clip_ratio_low if config.clip_ratio_low is not None else clip_ratio",
    ),
    Rule(
        "actor.clip_ratio_c",
        {"actor.clip_ratio_c": lambda number: number <= 1},
        "more than 1",
        "leave it out",
        f"{_LOSSES} | assert clip_ratio_c > 1.0",
    ),
    Rule(
        "actor.grad_clip",
        lambda recipe: recipe["actor.grad_clip"] not in (None, 1.0, recipe["actor.optim.clip_grad"]),
        "left out: veRL's engines do not read it",
        "set actor_rollout_ref.actor.optim.clip_grad",
        "workers/engine/fsdp/transformer_impl.py | assert self.optimizer_config.clip_grad is not None",
    ),
    Rule(
        "actor.freeze_vision_tower",
        {"actor.freeze_vision_tower": yes},
        "false: veRL 0.9.1's FSDP trainer does not read it, so the image encoder would still be trained",
        "to save memory, lower data.mm_processor_kwargs.max_pixels",
    ),
    Rule(
        "rollout.temperature",
        {"rollout.temperature": lambda number: number <= 0},
        "more than 0 in training: the policy's logits are divided by it",
        "to validate greedily, set actor_rollout_ref.rollout.val_kwargs.temperature=0",
        "workers/engine/fsdp/transformer_impl.py | return logits / temperature.clamp(min=1e-8)",
    ),
    Rule(
        "actor.loss_agg_mode",
        {"algorithm.episode_weight": "equal", "actor.loss_agg_mode": lambda mode: mode != "token-mean"},
        "token-mean with algorithm.episode_weight=equal, whose factors fit only that mean",
        "leave it out",
    ),
    Rule(
        "rollout.n",
        {"is_frontier": yes, "rollout.n": lambda number: number == 1},
        "2 or more with data.tasks.sampling=frontier, which draws tasks whose rollouts differ",
        "raise it, or set data.tasks.sampling=uniform",
    ),
    # Our sampler reports results to the dataset. Without it the dataset would learn nothing and draw all tasks alike.
    *(
        Rule(
            option,
            {"is_frontier": yes, option: lambda value, ours=ours: value not in ours},
            f"{' or '.join(map(str, ours))} with data.tasks.sampling=frontier",
            "set it so, or set data.tasks.sampling=uniform",
        )
        for option, ours in (
            (f"{_SAMPLER}.name", tuple(SAMPLERS)),
            ("data.custom_cls.name", ("TaskDataset",)),
            ("data.dataloader_num_workers", (0,)),
        )
    ),
)
"""What advantages are computed from, and what the loss reads."""

ROW_RULES = (
    Rule(
        "actor.loss_agg_mode",
        {"has_several_rows": yes, "actor.loss_agg_mode": lambda mode: not str(mode).startswith("token")},
        "token-mean or token-sum with episodes of several rows: a mean over sequences counts each row as an episode",
        _FULL,
    ),
    Rule(
        "critic.enable",
        {"has_several_rows": yes, "critic.enable": yes},
        "false with episodes of several rows: the critic's mini-batches would differ from the policy's",
        _FULL,
    ),
    # The engine keeps the routed experts of its last reply; veRL asks for teachers' log-probs of the last row.
    *(
        Rule(
            option,
            {"has_several_rows": yes, option: yes},
            "false with episodes of several rows: only the last row would have the data for it",
            _FULL,
            "trainer/ppo/v1/agent_loop_tq.py | async def _agent_loop_postprocess",
        )
        for option in ("rollout.enable_rollout_routing_replay", "distillation.enabled")
    ),
    Rule(
        "algorithm.adv_estimator",
        {"has_several_rows": yes, "algorithm.adv_estimator": lambda name: name not in ("replay_grpo", "grpo")},
        "replay_grpo or grpo with episodes of several rows: any other counts each row as a rollout of the group",
        _FULL,
        "trainer/ppo/v1/utils.py | if adv_estimator != core_algos.AdvantageEstimator.GRPO:",
    ),
    Rule(
        f"{_SAMPLER}.name",
        {
            "has_several_rows": yes,
            "algorithm.adv_estimator": lambda name: name != "grpo",
            "has_our_sampler": no,
        },
        f"{' or '.join(SAMPLERS)} with replay_grpo and episodes of several rows: only they note whose row is whose",
        _FULL,
    ),
)
"""What veRL does only with an episode's last row, or with each row as if it were an episode."""

RULES = (*PLUGIN_RULES, *RUN_RULES, *LEARNING_RULES, *ROW_RULES, *SIZE_RULES, *RANGE_RULES)
