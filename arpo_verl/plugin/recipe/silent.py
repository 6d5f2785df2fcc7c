"""Refuse what veRL 0.9.1 passes over in silence, although the run would train something wrong or end after hours.

veRL's own checks come first (`values.py: check_by_verl`). What veRL, vLLM or Ray refuse aloud within the first minutes
is left to them. `# FILE | text` names the line of veRL that a check depends on: `tests/plugin/recipe/test_silent.py`
looks for it in the installed veRL, so that an upgrade shows which check can go.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

from arpo_verl.lib.config import Checks, require
from arpo_verl.plugin.recipe.options import Recipe, full_name, num_training_rows, steps_of_epochs
from arpo_verl.plugin.settings import check_batch
from arpo_verl.plugin.trainer_state import token_splits
from arpo_verl.replay.config import SAMPLERS
from arpo_verl.tasks.selection import FRONTIER
from arpo_verl.versions import OWN_CACHES, installed_version, is_older

Refusals = Iterator[tuple[str, str, str]]
"""The option, what it must be (after a colon the reason), and what to do."""

_SAMPLER = "trainer.v1.sampler.custom_sampler"
_CORRECTION = "algorithm.rollout_correction"
_CACHE = "rollout.engine_kwargs.vllm.mm_processor_cache_type"
_WHOLE = "or set gui_agent.context=full, and gui_agent.harness=null"
_KL = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
_SAVED = ("model", "optimizer", "extra", "hf_model")
_REWARD = "write what it does into reward.custom_reward_function"
# Options that neither the V1 trainer nor our agent loop reads, the value that changes nothing, and what to do.
_UNREAD: dict[str, tuple[Any, str]] = {
    # experimental/reward_loop/reward_loop.py | def migrate_legacy_reward_impl(config):
    "custom_reward_function.path": (None, "set reward.custom_reward_function.path"),
    "reward_model.enable": (None, _REWARD),
    "reward_model.reward_manager": (None, _REWARD),
    # experimental/agent_loop/agent_loop.py | if final_output.reward_score is None and enable_async_reward:
    "reward.reward_manager.name": ("naive", _REWARD),
    "reward.reward_manager.source": ("register", _REWARD),
    "rollout.do_sample": (True, "set actor_rollout_ref.rollout.temperature"),
    # trainer/ppo/v1/agent_loop_tq.py | repetition_penalty=1.0,
    "rollout.repetition_penalty": (1, "leave it out"),
    "rollout.multi_turn.max_assistant_turns": (None, "set gui_agent.max_steps"),
    "rollout.multi_turn.max_user_turns": (None, "set gui_agent.max_steps"),
    "rollout.multi_turn.tool_config_path": (None, "leave it out"),
    # trainer/ppo/ray_trainer.py | rollout.get("checkpoint_manager_class")
    "rollout.checkpoint_manager_class": (None, "leave it out"),
    "actor.use_rollout_log_probs": (False, "leave it out"),
    "actor.freeze_vision_tower": (False, "to save memory, lower data.mm_processor_kwargs.max_pixels"),
}


def check_silent(recipe: Recipe) -> None:
    """Refuse what veRL would not.

    Raises:
        ConfigError: lists each option, with the reason and what to set.
    """
    checks = Checks()
    for group in (_parts, _engines, _run, _algorithm, _losses, _rows, _lengths, _adapters):
        checks.run(_refuse, group, recipe, checks)
    # trainer/ppo/v1/trainer_base.py | self.steps_per_epoch = len(self.train_dataset) //
    if rows := checks.run(num_training_rows, recipe.config):
        # trainer/ppo/v1/trainer_base.py | requires_exact_refill = self.trainer_mode != "sync" or dapo_enabled or
        refills = recipe["algorithm.filter_groups.enable"] or recipe["trainer.v1.sampler.sync_refill_failed_groups"]
        checks.run(check_batch, recipe.config.data, rows, "train_batch_size")
        if recipe.mode == "sync" and not refills:
            checks.run(check_batch, recipe.config.data, rows, "gen_batch_size")
    checks.raise_all()


def _refuse(group: Callable[[Recipe], Refusals], recipe: Recipe, checks: Checks) -> None:
    for option, expected, remedy in group(recipe):
        with checks.gather():
            value = os.environ.get(option) if option.isupper() else recipe[option]
            require(False, full_name(option), expected, value, remedy)


def _parts(recipe: Recipe) -> Refusals:
    """Check that our parts are in the trainer, and that no option is given to a part that does not read it."""
    # trainer/main_ppo.py | if config.trainer.use_v1:
    if not recipe["trainer.use_v1"]:
        yield "trainer.use_v1", "true: the sampler, the desktops and replay need the V1 trainer", "leave it out"
    # __init__.py | _plugins_policy = os.getenv(
    plugins = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    modules = (os.environ.get("VERL_USE_EXTERNAL_MODULES") or "").split(",")
    is_loaded = plugins == "auto" or "arpo_verl" in [name.strip() for name in plugins.split(",")]
    if not is_loaded and "arpo_verl.plugin" not in modules:
        reason = "auto, or a list with arpo_verl: veRL's workers would not have our parts"
        yield "VERL_USE_EXTERNAL_PLUGINS", reason, "unset it in the environment"
    # trainer/ppo/v1/agent_loop_tq.py | default_agent_loop = config.agent.default_agent_loop
    if recipe["rollout.agent.default_agent_loop"] != "gui_agent":
        remedy = "leave it out, and let `- arpo` come after ppo_trainer in the defaults"
        yield "rollout.agent.default_agent_loop", "gui_agent: veRL's own agent loops cannot use a desktop", remedy
    # trainer/ppo/v1/trainer_base.py | custom_sampler is not None and custom_sampler.get("path")
    absent = [name for name in ("path", "name") if not recipe[f"{_SAMPLER}.{name}"]]
    if recipe["replay.enable"] and absent:
        reason = "our sampler's with replay.enable=true: veRL's own samplers replay nothing"
        yield f"{_SAMPLER}.{absent[0]}", reason, "leave it out, or set replay.enable=false"
    # trainer/ppo/checkpoint_callback.py | return CheckpointCallback(config=config)
    if recipe["replay.enable"] and not recipe["trainer.checkpoint_callback_class"]:
        reason = "given with replay.enable=true: checkpoints would not contain the store of successes"
        yield "trainer.checkpoint_callback_class", reason, "leave it out"
    for option, (neutral, remedy) in _UNREAD.items():
        if recipe[option] not in (None, neutral):
            yield option, f"{json.dumps(neutral)}: nothing here reads it", remedy
    # trainer/ppo/v1/trainer_base.py | batch = self._compute_reward_colocate(batch, metrics=metrics)
    if recipe["reward.reward_model.enable"]:
        reason = "false: its scores would take the place of the desktops' verdicts, or nothing would ask it"
        yield "reward.reward_model.enable", reason, _REWARD
    # experimental/agent_loop/agent_loop.py | chat_template_kwargs=self.apply_chat_template_kwargs,
    if recipe["data.apply_chat_template_kwargs"]:
        reason = "empty: rollouts would use them, but not seeds, and no store of successes would show it"
        remedy = f"set them in {full_name('model.custom_chat_template')}"
        yield "data.apply_chat_template_kwargs", reason, remedy
    if recipe["data.tasks.sampling"] == FRONTIER:
        for option, ours in (
            (f"{_SAMPLER}.name", tuple(SAMPLERS)),  # reports results to the dataset
            ("data.custom_cls.name", ("TaskDataset",)),
            ("data.dataloader_num_workers", (0,)),
        ):
            if recipe[option] not in ours:
                expected = f"{' or '.join(map(str, ours))} with data.tasks.sampling=frontier"
                yield option, expected, "set it so, or set data.tasks.sampling=uniform"


def _engines(recipe: Recipe) -> Refusals:
    """Check the rollout engines, and what the trainer sends them."""
    apart = recipe.mode == "separate_async"
    if recipe["rollout.name"] == "vllm" and recipe[_CACHE] == "shm":
        gpus = recipe["rollout.n_gpus_per_node" if apart else "trainer.n_gpus_per_node"]
        if recipe.gpus_per_engine > gpus:
            reason = f"lru with an engine of {recipe.gpus_per_engine} GPUs: nodes of {gpus} GPUs cannot share memory"
            yield _CACHE, reason, "set it to lru"
        vllm = installed_version("vllm")
        if vllm is not None and not is_older(vllm, OWN_CACHES):
            reason = f"lru with vLLM {vllm}: it keeps its caches where ours finds no place, and its lru sends enough"
            yield _CACHE, reason, "set it to lru"
        plugins = os.environ.get("VLLM_PLUGINS")
        if plugins is not None and "arpo_verl" not in plugins.split(","):
            reason = "vLLM's own cache in shared memory can show a request another's picture"
            remedy = f"unset it in the environment, or set {full_name(_CACHE)}=lru"
            yield "VLLM_PLUGINS", f"unset, or a list with arpo_verl: {reason}", remedy
    if recipe["rollout.logprobs_mode"] not in (None, "processed_logprobs", "raw_logprobs"):  # vLLM has others
        reason = "processed_logprobs or raw_logprobs: anything else would be read as log-probs"
        yield "rollout.logprobs_mode", reason, "leave it out"
    # workers/rollout/vllm_rollout/vllm_async_server.py | decode_peer = self._select_decode_peer()
    if recipe["rollout.disaggregation.enabled"]:
        reason = "false: each turn would go to another engine, with all screenshots of its episode; we never tried it"
        yield "rollout.disaggregation.enabled", reason, "leave it out"
    switch = "trainer.v1.separate_async.hybrid_rollout.enable_switch"
    # trainer/ppo/v1/trainer_separate_async.py | self.clear_sticky_cache()
    if apart and recipe[switch]:
        reason = "false: each switch sends running episodes to engines that do not have their screenshots"
        yield switch, reason, "leave it out"
    # To score with a step's first weights, veRL saves the newer ones by `.cpu()`, which copies nothing in host memory.
    # trainer/ppo/v1/trainer_separate_async.py | self.actor_rollout_wg.save_model_to_cpu(self.local_trigger_step)
    if apart and recipe["trainer.v1.separate_async.parameter_sync_step"] > 1 and recipe["trainer.device"] != "cpu":
        for option in ("actor.fsdp_config.param_offload", "actor.fsdp_config.offload_policy"):
            if recipe[option] and recipe["actor.strategy"] == "fsdp2":
                reason = "false with separate_async and several updates a step: all but the last would be lost"
                yield option, reason, f"set it to false, or {full_name('actor.strategy')}=fsdp"


def _run(recipe: Recipe) -> Refusals:
    """Check what the run does, where it begins and where it ends."""
    # trainer/ppo/v1/trainer_base.py | if self.config.trainer.get("val_only", False):
    if recipe["trainer.val_only"] and not recipe["trainer.val_before_train"]:
        reason = "true with trainer.val_only=true: otherwise veRL does not read val_only, and trains"
        yield "trainer.val_before_train", reason, "set it to true, or leave trainer.val_only out"
    # trainer/ppo/v1/trainer_base.py | elif self.config.trainer.resume_mode == "resume_path":
    if recipe["trainer.resume_from_path"] and recipe["trainer.resume_mode"] in ("auto", "disable"):
        path = recipe["trainer.resume_from_path"]
        reason = f"resume_path with trainer.resume_from_path={path}, which no other mode reads"
        yield "trainer.resume_mode", reason, "set it to resume_path, or leave trainer.resume_from_path out"
    # utils/checkpoint/checkpoint_manager.py | return "model" in self.checkpoint_load_contents
    loaded, saved = (recipe[f"actor.checkpoint.{kind}_contents"] or () for kind in ("load", "save"))
    if recipe["trainer.resume_mode"] != "disable" and "model" not in loaded:
        reason = "a list with `model` if the run may resume: it would go on with the weights that it began with"
        remedy = f"add `model` to {full_name('actor.checkpoint.save_contents')}, or set trainer.resume_mode=disable"
        yield "actor.checkpoint.load_contents", reason, remedy
    if any(name not in _SAVED for name in ([saved] if isinstance(saved, str) else saved)):
        reason = f"a list of {', '.join(_SAVED)}: veRL silently ignores all other names"
        yield "actor.checkpoint.save_contents", reason, "correct it"
    # trainer/ppo/v1/trainer_base.py | if actor_ckpt_cfg.get("async_save", False):
    if recipe["actor.checkpoint.async_save"]:
        reason = "false: veRL would never note which checkpoint to resume from, and FSDP does not save so"
        yield "actor.checkpoint.async_save", reason, "leave it out"
    # trainer/ppo/v1/trainer_base.py | is_last_step = self.global_steps >= self.total_training_steps
    steps = steps_of_epochs(recipe.config)
    if steps and (recipe["trainer.total_training_steps"] or 0) > steps:
        reason = f"at most {steps}, the steps of all epochs: the run would end without a last checkpoint"
        yield "trainer.total_training_steps", reason, "raise trainer.total_epochs, or leave it out"
    # trainer/ppo/v1/trainer_base.py | if self.config.trainer.critic_warmup <= self.global_steps:
    if recipe["trainer.critic_warmup"] and not recipe.has_critic:
        reason = "0 without a critic: the policy is not trained before that step"
        yield "trainer.critic_warmup", reason, "leave it out"
    # trainer/ppo/v1/agent_loop_tq.py | sampling_params["temperature"] = config.val_kwargs.temperature
    if not recipe["rollout.val_kwargs.do_sample"] and recipe["rollout.val_kwargs.temperature"]:
        reason = "0 with rollout.val_kwargs.do_sample=false: the V1 trainer reads only the temperature"
        remedy = f"set it to 0, or {full_name('rollout.val_kwargs.do_sample')}=true"
        yield "rollout.val_kwargs.temperature", reason, remedy


def _algorithm(recipe: Recipe) -> Refusals:
    """Check what advantages are computed from."""
    if recipe["rollout.n"] == 1:
        # trainer/ppo/core_algos.py | / (c - 1).clamp_min(1)) * (c > 1)
        if recipe["replay.enable"] or recipe["algorithm.adv_estimator"] in ("grpo_passk", "rloo_vectorized"):
            option = "replay.enable" if recipe["replay.enable"] else "algorithm.adv_estimator"
            reason = f"2 or more with {option}={str(recipe[option]).lower()}: every advantage of a group of one is 0"
            yield "rollout.n", reason, "set it to 8 as in the paper"
        # trainer/ppo/v1/replay_buffer.py | if len(values) > 1 and float(np.std(values)) == 0.0 else None
        if recipe["algorithm.filter_groups.enable"]:
            reason = "2 or more with algorithm.filter_groups.enable=true: a group of one is never filtered"
            yield "rollout.n", reason, "raise it, or leave the filter out"
        if recipe["data.tasks.sampling"] == FRONTIER:
            reason = "2 or more with data.tasks.sampling=frontier, which draws tasks whose rollouts differ"
            yield "rollout.n", reason, "raise it, or set data.tasks.sampling=uniform"
    # trainer/ppo/v1/trainer_base.py | data["old_log_probs"] = data.pop("rollout_log_probs")
    if recipe[f"{_CORRECTION}.bypass_mode"]:
        reason = "false: the V1 trainer does not use this mode's loss, so rollout_is and rollout_rs do nothing"
        yield f"{_CORRECTION}.bypass_mode", reason, f"set it to false; {_CORRECTION}.rollout_is=token corrects"
    # trainer/ppo/v1/trainer_base.py | rollout_corr_config is not None and "rollout_log_probs" in data.batch
    if not recipe["rollout.calculate_log_probs"]:
        for option in (f"{_CORRECTION}.rollout_is", f"{_CORRECTION}.rollout_rs"):
            if recipe[option]:
                reason = f"true with {option}={recipe[option]}: veRL skips it if a batch has no log-probs"
                yield "rollout.calculate_log_probs", reason, f"leave it out, or set {option}=null"
    # trainer/ppo/ray_trainer.py | if config.get("use_pf_ppo", False):
    if recipe["algorithm.use_pf_ppo"]:
        reason = "false: it draws rows again, and the V1 trainer would give their advantages to other rows"
        yield "algorithm.use_pf_ppo", reason, "leave it out"


def _losses(recipe: Recipe) -> Refusals:
    """Check what the loss and the optimizer read."""
    # trainer/ppo/rollout_corr_helper.py | policy_loss_config["loss_mode"] = "bypass_mode"
    if recipe["actor.policy_loss.loss_mode"] == "bypass_mode":
        reason = "another loss: the V1 trainer does not pass algorithm.rollout_correction to this one"
        yield "actor.policy_loss.loss_mode", reason, "leave it out"
    # trainer/ppo/core_algos.py | clip_ratio_low = config.clip_ratio_low if config.clip_ratio_low is not None
    pair = (recipe["actor.clip_ratio_low"], recipe["actor.clip_ratio_high"])
    reads_it = None in pair or str(recipe["actor.policy_loss.loss_mode"]).startswith("dppo")
    if not reads_it and recipe["actor.clip_ratio"] not in (0.2, *pair):
        reason = "left out: the loss reads actor.clip_ratio_low={} and actor.clip_ratio_high={} instead"
        yield "actor.clip_ratio", reason.format(*pair), "set these two"
    # workers/engine/fsdp/transformer_impl.py | assert self.optimizer_config.clip_grad is not None
    if recipe["actor.grad_clip"] not in (None, 1.0, recipe["actor.optim.clip_grad"]):
        yield "actor.grad_clip", "left out: veRL's engines do not read it", f"set {full_name('actor.optim.clip_grad')}"
    fit = {"actor.loss_agg_mode": "token-mean", "algorithm.adv_estimator": "replay_grpo"}
    for option in fit if recipe["algorithm.episode_weight"] == "equal" else ():
        if recipe[option] != fit[option]:
            reason = f"{fit[option]} with algorithm.episode_weight=equal: with another it is no equal weight"
            yield option, reason, "leave it out"
    # trainer/ppo/core_algos.py | if kl_penalty in ("low_var_kl", "k3"):
    kinds = {"actor.use_kl_loss": "actor.kl_loss_type", "algorithm.use_kl_in_reward": "algorithm.kl_penalty"}
    for option in (kind for use, kind in kinds.items() if recipe[use]):
        if str(recipe[option]).removesuffix("+") not in _KL:
            yield option, f"one of {', '.join(_KL)}: veRL looks for it after the first rollouts", "correct it"
    # workers/engine/fsdp/transformer_impl.py | return logits / temperature.clamp(min=1e-8)
    positive = ["rollout.temperature", "actor.optim.clip_grad", "actor.loss_scale_factor"]
    for option in positive + ["model.lora_alpha"] * bool(recipe["model.lora_rank"]):
        if recipe[option] is not None and recipe[option] <= 0:
            yield option, "more than 0", "correct it"
    for option in ("actor.clip_ratio_low", "actor.clip_ratio_high", "actor.kl_loss_coef", "model.lora_rank"):
        if recipe[option] is not None and recipe[option] < 0:
            yield option, "at least 0", "correct it"
    # workers/engine/fsdp/transformer_impl.py | int(num_warmup_steps_ratio *
    if not 0 <= (recipe["actor.optim.lr_warmup_steps_ratio"] or 0) <= 1:
        yield "actor.optim.lr_warmup_steps_ratio", "from 0 to 1, a share of all steps", "correct it"


def _rows(recipe: Recipe) -> Refusals:
    """Check what veRL does only with an episode's last row, or with each row as if it were an episode."""
    several = recipe.has_several_rows
    # trainer/ppo/v1/agent_loop_tq.py | async def _agent_loop_postprocess
    for option in ("rollout.enable_rollout_routing_replay", "distillation.enabled"):
        if recipe[option] and several:
            yield option, "false with episodes of several rows: only the last row would have the data for it", _WHOLE
        if recipe[option] and recipe["replay.enable"]:
            reason = "false with replay.enable=true: stored successes do not have the data for it"
            yield option, reason, "leave it out, or set replay.enable=false"
    if not several:
        return
    if not str(recipe["actor.loss_agg_mode"]).startswith("token"):
        reason = "token-mean or token-sum with episodes of several rows: others count each row as an episode"
        yield "actor.loss_agg_mode", reason, _WHOLE
    # trainer/ppo/v1/utils.py | if adv_estimator != core_algos.AdvantageEstimator.GRPO:
    if recipe["algorithm.adv_estimator"] not in ("replay_grpo", "grpo"):
        reason = "replay_grpo or grpo with episodes of several rows: others count each row as a rollout"
        yield "algorithm.adv_estimator", reason, _WHOLE
    if recipe["algorithm.adv_estimator"] != "grpo" and recipe[f"{_SAMPLER}.name"] not in SAMPLERS:
        reason = "with replay_grpo and episodes of several rows: only they note whose row is whose"
        yield f"{_SAMPLER}.name", f"{' or '.join(SAMPLERS)} {reason}", _WHOLE


def _lengths(recipe: Recipe) -> Refusals:
    """Check what would end or cut a long episode, perhaps after hours."""
    # utils/seqlen_balancing.py | assert max_token_len >= max_seq_len
    for option, split in token_splits(recipe.config).items():
        if (recipe[option] or 0) * split < recipe.longest:
            reason = f"at least {math.ceil(recipe.longest / split)}: with dynamic batches a longer episode ends the run"
            yield option, reason, "raise it, or lower data.max_response_length"
    # workers/rollout/vllm_rollout/vllm_async_server.py | leaves no room to generate within the
    if (recipe["rollout.max_model_len"] or recipe.longest) < recipe.longest:
        reason = f"at least {recipe.longest}, data.max_prompt_length and data.max_response_length together"
        yield "rollout.max_model_len", reason, "raise it, or lower data.max_response_length"
    for name in ("prompt_length", "response_length"):
        if recipe[f"rollout.{name}"] != recipe[f"data.max_{name}"]:
            reason = f"data.max_{name}={recipe[f'data.max_{name}']}: episodes are cut to it, and the rest reads data's"
            yield f"rollout.{name}", reason, f"leave it out, and set data.max_{name}"
    # workers/rollout/vllm_rollout/vllm_async_server.py | sampling_params.setdefault("ignore_eos"
    if recipe["rollout.ignore_eos"]:
        reason = "false: each reply would go on until gui_agent.max_reply_tokens"
        yield "rollout.ignore_eos", reason, "leave it out"


def _adapters(recipe: Recipe) -> Refusals:
    """Check LoRA."""
    # workers/engine/fsdp/transformer_impl.py | self._is_lora = self.model_config.lora_rank > 0
    if recipe["model.lora.rank"]:
        reason = "0: FSDP would train all weights, and the engine would wait for an adapter"
        yield "model.lora.rank", reason, f"set {full_name('model.lora_rank')}"
    adapter, has_rank = recipe["model.lora_adapter_path"], (recipe["model.lora_rank"] or 0) > 0
    if adapter and not has_rank:
        reason = "null without actor_rollout_ref.model.lora_rank: veRL would not load it, and would train all weights"
        yield "model.lora_adapter_path", reason, "set lora_rank to the adapter's rank"
    # By default vLLM loads no adapter of the image encoder. Names in a list match in it too; a pattern is the user's.
    # workers/engine/fsdp/transformer_impl.py | "exclude_modules": convert_to_regular_types(
    is_loaded = recipe["model.lora.merge"] or recipe["rollout.engine_kwargs.vllm.enable_tower_connector_lora"]
    target = recipe["model.target_modules"]
    is_pattern = isinstance(target, str) and target != "all-linear"
    if has_rank and not (adapter or is_loaded or is_pattern or "visual" in str(recipe["model.exclude_modules"])):
        reason = "a pattern with `visual`: the engine would not load the adapter that the image encoder gets"
        yield "model.exclude_modules", reason, f"set {full_name('model.exclude_modules')}='.*visual.*'"
