"""Convert options that several of theirs make together, and what their trainers do without an option."""

from __future__ import annotations

import re
from typing import Any

from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import require
from arpo_verl.tools.migration.keys import ACTOR, ROLLOUT
from arpo_verl.tools.migration.settings import Settings

Options = dict[str, Any]

MISSING = "???"
"""Hydra's mark for a value that must still be filled in."""
# The first turn of osworld_full has a prompt and a 1080p screenshot.
FIRST_TURN_TOKENS = 5120
ESTIMATORS = {"grpo": "replay_grpo", "rloo": "rloo", "reinforce_plus_plus": "reinforce_plus_plus"}
LOSSES = {"default": "vanilla", "gspo": "gspo", "gspo_token": "gspo", "cispo": "cispo", "sapo": "sapo"}
SAMPLING = ("n", "temperature", "top_p", "top_k")


def apply_rules(settings: Settings) -> tuple[Options, list[str]]:
    """Return the recipe's options for all keys with `by_rule`, and a line for each thing that is lost.

    Raises:
        ConfigError: a recipe cannot express some values; names all of them.
    """
    options: Options = {}
    lost: list[str] = []
    problems: list[str] = []
    for rule in (_tasks, _lengths, _pixels, _estimator, _kl, _loss, _validation, _trainer, _reference):
        try:
            rule(settings, options, lost)
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return options, lost


def _tasks(settings: Settings, options: Options, lost: list[str]) -> None:
    for name in ("train_files", "val_files"):
        options[f"data.{name}"] = settings[f"data.{name}"]
        if f"data.{name}" not in settings.given:
            options[f"data.{name}"] = MISSING


def _lengths(settings: Settings, options: Options, lost: list[str]) -> None:
    options["gui_agent.max_reply_tokens"] = settings["data.max_response_length"]
    if not settings.is_arpo:
        return
    episode = settings["data.max_prompt_length"]
    if "data.max_prompt_length" in settings.placeholders or episode >= 2 * FIRST_TURN_TOKENS:
        options["data.max_prompt_length"] = FIRST_TURN_TOKENS
        options["data.max_response_length"] = episode - FIRST_TURN_TOKENS
        options[f"{ROLLOUT}.max_model_len"] = episode
    else:
        lost.append(f"data.max_prompt_length={episode}: too short for an episode on a desktop; osworld_full's is used")
    # Theirs trains on no more images than vLLM takes; without a limit vLLM takes one a step.
    steps, images = settings["env.max_steps"], settings["worker.rollout.limit_images"]
    unknown = {"env.max_steps", "worker.rollout.limit_images"} & set(settings.placeholders)
    options["gui_agent.max_screenshots"] = MISSING if unknown else min(steps, images) if images > 0 else steps


def _pixels(settings: Settings, options: Options, lost: list[str]) -> None:
    limits = {name: settings[f"data.{name}"] for name in ("min_pixels", "max_pixels")}
    known = [value for value in limits.values() if value is not None]
    remedy = "add the other: data.min_pixels=N or data.max_pixels=N"
    require(len(known) != 1, "data.min_pixels and data.max_pixels", "both given or both null", limits, remedy)
    if known:
        options |= {f"data.mm_processor_kwargs.{name}": value for name, value in limits.items()}


def _estimator(settings: Settings, options: Options, lost: list[str]) -> None:
    estimator = settings["algorithm.adv_estimator"]
    known = {"grpo"} if settings.is_arpo else set(ESTIMATORS)
    require(
        estimator in known,
        "algorithm.adv_estimator",
        f"one of {', '.join(sorted(known))}",
        estimator,
        ("replay is defined for groups" if settings.is_arpo else "no recipe has a critic or another estimator")
        + "; to train with grpo, add algorithm.adv_estimator=grpo",
    )
    options["algorithm.adv_estimator"] = ESTIMATORS[estimator]


def _kl(settings: Settings, options: Options, lost: list[str]) -> None:
    coefficient = settings["algorithm.kl_coef"]
    has_kl = not settings["algorithm.disable_kl"] and coefficient != 0
    in_loss = settings["algorithm.use_kl_loss"]
    options[f"{ACTOR}.use_kl_loss"] = has_kl and in_loss
    options["algorithm.use_kl_in_reward"] = has_kl and not in_loss
    if has_kl and in_loss:
        options |= {f"{ACTOR}.kl_loss_coef": coefficient, f"{ACTOR}.kl_loss_type": settings["algorithm.kl_penalty"]}
    elif has_kl:
        options["algorithm.kl_penalty"] = settings["algorithm.kl_penalty"]
        names = {"type": "kl_type", "kl_coef": "kl_coef", "horizon": "kl_horizon", "target_kl": "kl_target"}
        options |= {f"algorithm.kl_ctrl.{ours}": settings[f"algorithm.{theirs}"] for ours, theirs in names.items()}


def _loss(settings: Settings, options: Options, lost: list[str]) -> None:
    """EasyR1 weighs micro batches by their tokens; the reference, an older fork, takes the mean of their means."""
    kind, micro = settings["worker.actor.loss_type"], settings["worker.actor.micro_batch_size_per_device_for_update"]
    remedy = "choose one: worker.actor.loss_type=NAME"
    require(kind in LOSSES, "worker.actor.loss_type", f"one of {', '.join(LOSSES)}", kind, remedy)
    options[f"{ACTOR}.policy_loss.loss_mode"] = LOSSES[kind]
    options[f"{ACTOR}.ppo_micro_batch_size_per_gpu"] = micro
    mean_of_rollouts = micro == 1 if settings.is_arpo else settings["worker.actor.loss_avg_mode"] == "seq"
    options[f"{ACTOR}.loss_agg_mode"] = "seq-mean-token-mean" if mean_of_rollouts else "token-mean"
    if settings.is_arpo and micro > 1:
        lost.append(
            f"worker.actor.micro_batch_size_per_device_for_update={micro}: the reference's loss is then a mean of "
            f"means, each over {micro} rollouts' tokens; the recipe has token-mean, over all tokens of an update"
        )
    if (both := settings["worker.actor.clip_ratio"]) is not None:
        options |= {f"{ACTOR}.clip_ratio_low": both, f"{ACTOR}.clip_ratio_high": both}


def _validation(settings: Settings, options: Options, lost: list[str]) -> None:
    overrides = settings["worker.rollout.val_override_config"]
    unknown = sorted(set(overrides) - set(SAMPLING))
    remedy = "correct it, or add --ignore worker.rollout.val_override_config"
    require(not unknown, "worker.rollout.val_override_config", f"of {', '.join(SAMPLING)}", ", ".join(unknown), remedy)
    sampling = {name: settings[f"worker.rollout.{name}"] for name in SAMPLING}
    sampling |= {name: MISSING for name in SAMPLING if f"worker.rollout.{name}" in settings.placeholders}
    sampling |= {"n": 1} if settings.is_arpo else {}
    sampling |= overrides
    temperature = sampling["temperature"]
    sampling["do_sample"] = MISSING if temperature == MISSING else temperature > 0
    options |= {f"{ROLLOUT}.val_kwargs.{name}": value for name, value in sampling.items()}


def _trainer(settings: Settings, options: Options, lost: list[str]) -> None:
    options["actor_rollout_ref.model.path"] = settings["worker.actor.model.model_path"]
    name = settings["trainer.experiment_name"]
    ok = re.fullmatch(r"\w[\w.+-]{0,200}", name) is not None
    remedy = "choose another: trainer.experiment_name=NAME"
    require(ok, "trainer.experiment_name", "letters, digits and .+-_ alone, since it names a folder", name, remedy)
    # +policy, +context and +baseline behind the recipe extend the name.
    options["trainer.experiment_name"] = f"{name}${{variant.policy}}${{variant.context}}${{variant.baseline}}"
    loggers = settings["trainer.logger"]
    loggers = [loggers] if isinstance(loggers, str) else list(loggers)
    options["trainer.logger"] = loggers + ["file"] * ("file" not in loggers)
    if settings["trainer.save_model_only"]:
        options[f"{ACTOR}.checkpoint.save_contents"] = ["model"]
    if settings["trainer.save_checkpoint_path"] is not None:
        options["trainer.default_local_dir"] = settings["trainer.save_checkpoint_path"]


def _reference(settings: Settings, options: Options, lost: list[str]) -> None:
    """Set the options for what their trainer does without an option."""
    options["replay.enable"] = settings.is_arpo
    if settings.is_arpo:
        options["replay.std"] = "sample"
        options["reward.custom_reward_function.reward_kwargs.format_weight"] = 0.5
