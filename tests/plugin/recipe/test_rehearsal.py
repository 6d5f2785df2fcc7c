"""veRL calculates once with a recipe's values, before anything starts: what fails then would have failed in a step."""

import pytest
from support.composed import compose_recipe

from arpo_verl.config import Problems
from arpo_verl.plugin.recipe.values import check_by_verl

pytest.importorskip("verl")

from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402

from arpo_verl.plugin.recipe.rehearsal import rehearsals  # noqa: E402

ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"


def recipe(*overrides):
    return compose_recipe("osworld_full", "data.train_files=t.json", "data.val_files=t.json", *overrides)


def rehearse(*overrides):
    config = recipe(*overrides)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    for one in rehearsals(actor, config.algorithm.get("rollout_correction") or {}):
        one()


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ((f"{ACTOR}.optim.lr=-1e-6",), "Invalid learning rate: -1e-06"),
        ((f"{ACTOR}.optim.weight_decay=-1",), "Invalid weight_decay value: -1"),
        ((f"{ACTOR}.optim.betas=[1.5,0.9]",), "Invalid beta parameter at index 0: 1.5"),
        ((f"{ACTOR}.optim.optimizer=AdamX",), "Optimizer 'AdamX' not found in module 'torch.optim'"),
        (
            (f"{ACTOR}.optim.lr_scheduler_type=cosine", f"{ACTOR}.optim.min_lr_ratio=2"),
            "assert min_lr_ratio >= 0 and min_lr_ratio <= 1.0",
        ),
        ((f"{ACTOR}.policy_loss.loss_mode=dro",), "dro_beta"),
        (
            (f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=-1"),
            "rollout_is_threshold upper bound must be positive",
        ),
        (
            (f"{CORRECTION}.rollout_rs=seq_k1", f"{CORRECTION}.rollout_rs_threshold=1"),
            "Invalid rollout_rs option: seq_k1",
        ),
        (
            (f"{CORRECTION}.rollout_rs=token_k1", f"{CORRECTION}.rollout_rs_threshold=low"),
            "could not convert string to float: 'low'",
        ),
    ],
)
def test_what_would_fail_in_a_step_is_refused_in_verls_words(overrides, says):
    found = Problems()
    with found.gather():
        check_by_verl(recipe(*overrides))
    assert any(says in str(error) and str(error).startswith("veRL refuses") for error in found.errors), found.errors


@pytest.mark.parametrize("mode", sorted({*POLICY_LOSS_REGISTRY, "a_plugin_s"} - {"bypass_mode"}))
def test_each_loss_can_be_rehearsed(mode):
    overrides = [f"{ACTOR}.policy_loss.loss_mode={mode}", f"++{ACTOR}.policy_loss.dro_beta=0.1"]
    rehearse(*overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        (f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor=100"),
        (f"{ACTOR}.optim.optimizer_impl=bitsandbytes.optim", f"{ACTOR}.optim.optimizer=AdamW8bit"),
        (f"{ACTOR}.optim.optimizer=SGD",),
        (f"{CORRECTION}.rollout_is=sequence", f"{CORRECTION}.rollout_is_threshold=0.5_2.0"),
        ("++algorithm.rollout_correction=null",),
    ],
)
def test_sound_values_pass(overrides):
    rehearse(*overrides)
