"""Options of veRL's own that cannot work together, or that nothing reads: refused before anything starts.

Each rests on a line of veRL 0.9.1; `tests/plugin/test_combinations.py` runs those lines, and fails where an upgrade
mends one, so that its refusal can go.
"""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from arpo_verl.config import Problems, require
from arpo_verl.footprint import Model
from arpo_verl.plugin.recipe_footprint import sequence_parallel_size, weight_copies
from arpo_verl.replay.config import SAMPLERS
from arpo_verl.rollout.config import FULL

_FSDP = "actor_rollout_ref.actor.fsdp_config"


def check_combinations(config: DictConfig, model: Model | None) -> None:
    """Refuse what cannot work.

    Args:
        config: the composed recipe.
        model: the policy's shape; None where it is not known, and what depends on it is veRL's to refuse.

    Raises:
        ConfigError: each combination that cannot work, with the way out.
    """
    problems = Problems()
    for check in (_check_trainer, _check_offload, _check_several_rows, _check_frozen):
        with problems.gather():
            check(config)
    if model is not None:
        for check_model in (_check_fused_kernels, _check_sequence_parallel):
            with problems.gather():
                check_model(config, model)
    problems.raise_all()


def _check_trainer(config: DictConfig) -> None:
    require(
        config.trainer.use_v1,
        "trainer.use_v1",
        "true: sampler, desktops and replay hang on the V1 trainer",
        False,
        "leave it out",
    )


def _check_frozen(config: DictConfig) -> None:
    require(
        not config.actor_rollout_ref.actor.get("freeze_vision_tower", False),
        "actor_rollout_ref.actor.freeze_vision_tower",
        "false: nothing in veRL 0.9.1's FSDP trainer reads it, so the image encoder would be trained all the same",
        True,
        "to save memory lower data.mm_processor_kwargs.max_pixels",
    )


def _check_offload(config: DictConfig) -> None:
    """With several updates a step, veRL scores each batch by the weights that the step began with.

    It saves the newer weights, restores the older, scores, and restores the newer (`PPOTrainerSeparateAsync`,
    `_compute_old_log_prob`). `fsdp2_sharded_save_to_cpu` saves by `.cpu()`, which copies nothing of what lies in host
    memory: the copy is the weights themselves, the older overwrite it, and the update before is lost.
    """
    actor = config.actor_rollout_ref.actor
    if weight_copies(config) < 2 or actor.strategy != "fsdp2" or config.trainer.device == "cpu":
        return
    for option in ("param_offload", "offload_policy"):
        require(
            not actor.fsdp_config[option],
            f"{_FSDP}.{option}",
            "false with trainer_mode=separate_async and several updates a step: all but the last would be lost",
            True,
            "set it to false (optimizer_offload may stay true), or take actor_rollout_ref.actor.strategy=fsdp, which "
            "copies",
        )


def _check_several_rows(config: DictConfig) -> None:
    """What veRL does with an episode's last row alone, or with each row as if it were an episode.

    Routed experts are those that the engine tells with its last reply; teachers' log-probs are asked for the last row
    (`agent_loop_tq.py: _agent_loop_postprocess`); advantages are taken over last rows for the built-in `grpo` alone
    (`compute_advantage_for_multi_trajectories`), and over episodes by ours, which knows them by our samplers' labels.
    """
    if OmegaConf.select(config, "gui_agent.context", default=FULL) == FULL:
        return
    remedy = "or set gui_agent.context=full"
    mode = str(config.actor_rollout_ref.actor.loss_agg_mode)
    expected = "token-mean or token-sum with episodes of several rows: a mean over sequences takes each for an episode"
    require(mode.startswith("token"), "actor_rollout_ref.actor.loss_agg_mode", expected, mode, remedy)
    expected = "false with episodes of several rows: its mini-batches would be cut apart from the policy's"
    require(not OmegaConf.select(config, "critic.enable", default=False), "critic.enable", expected, True, remedy)
    for name in ("actor_rollout_ref.rollout.enable_rollout_routing_replay", "distillation.enabled"):
        expected = "false with episodes of several rows: only the last one would have what it takes"
        require(not OmegaConf.select(config, name, default=False), name, expected, True, remedy)
    estimator = config.algorithm.adv_estimator
    expected = "replay_grpo or grpo with episodes of several rows: any other takes each row for a rollout of the group"
    require(estimator in ("replay_grpo", "grpo"), "algorithm.adv_estimator", expected, estimator, remedy)
    sampler = config.trainer.v1.sampler.custom_sampler.name
    expected = f"{' or '.join(SAMPLERS)} with replay_grpo and episodes of several rows: they tell it whose each is"
    name = "trainer.v1.sampler.custom_sampler.name"
    require(estimator == "grpo" or sampler in SAMPLERS, name, expected, sampler, remedy)


def _check_fused_kernels(config: DictConfig, model: Model) -> None:
    """FSDP2 shards an output matrix of its own by itself (`_select_fsdp2_wrap_targets`), and the fused forward
    multiplies by it without calling it (`forward_with_torch_backend`): a DTensor by a Tensor."""
    refused = config.actor_rollout_ref.actor.strategy == "fsdp2" and not model.tied_embeddings
    require(
        not (refused and config.actor_rollout_ref.model.use_fused_kernels),
        "actor_rollout_ref.model.use_fused_kernels",
        "false with actor.strategy=fsdp2 and a policy whose output matrix is its own: the first update would end with "
        "`mixed torch.Tensor and DTensor`",
        True,
        "for memory set actor_rollout_ref.actor.entropy_from_logits_with_chunking=true, or lower "
        "data.mm_processor_kwargs.max_pixels",
    )


def _check_sequence_parallel(config: DictConfig, model: Model) -> None:
    """As `apply_monkey_patch` and `FSDPEngine` will ask, in the workers."""
    size, name = sequence_parallel_size(config), f"{_FSDP}.ulysses_sequence_parallel_size"
    sizes, gpus = model.sequence_parallel_sizes, config.trainer.nnodes * config.trainer.n_gpus_per_node
    heads = f"{model.num_heads} attention heads and {model.num_kv_heads} key-value heads"
    fitting = [n for n in sizes if gpus % n == 0]
    expected = f"one of {', '.join(map(str, fitting))}: what splits this policy's {heads}, and {gpus} GPUs"
    require(size in fitting, name, expected, size)
    require(
        size == 1 or config.actor_rollout_ref.model.use_remove_padding,
        "actor_rollout_ref.model.use_remove_padding",
        f"true with {name}={size}",
        False,
    )
