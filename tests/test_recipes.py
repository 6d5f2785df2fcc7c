"""Every recipe composes over the installed veRL's own configuration and passes its own validation."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from arpo_verl.config import build_config
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.replay.config import ReplayConfig
from arpo_verl.rollout.config import GuiAgentConfig

RECIPES = Path(__file__).parents[1] / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem != "arpo")


def compose_recipe(name: str, *overrides: str) -> DictConfig:
    # What `--config-dir recipes` does to the stock trainer's own search path.
    with initialize_config_dir(str(RECIPES), version_base=None):
        return compose(name, overrides=["hydra.searchpath=[pkg://verl.trainer.config]", *overrides])


@pytest.fixture(params=NAMES)
def recipe(request: pytest.FixtureRequest) -> DictConfig:
    return compose_recipe(request.param, "data.train_files=tasks.json", "data.val_files=tasks.json")


def test_there_are_the_recipes_that_the_readme_names():
    assert {"embedded", "osworld_subset32", "osworld_full"} <= set(NAMES)


def test_recipe_passes_verls_own_validation(recipe):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    reference, critic = need_reference_policy(recipe), need_critic(recipe)
    assert not reference and not critic, "ARPO has neither a KL term nor a critic"
    validate_config(recipe, reference, critic)


def test_recipe_sections_build_our_configs(recipe):
    for cls, section in ((GuiAgentConfig, "gui_agent"), (EnvironmentConfig, "environment"), (ReplayConfig, "replay")):
        build_config(cls, section, OmegaConf.to_container(recipe[section], resolve=True))


def test_recipe_selects_our_plugin_points(recipe):
    assert recipe.algorithm.adv_estimator == "replay_grpo"
    assert recipe.actor_rollout_ref.rollout.agent.default_agent_loop == "gui_agent"
    assert recipe.trainer.v1.sampler.custom_sampler.name in ("ReplaySampler", "ReplaySamplerAsync")
    assert recipe.trainer.v1.sampler.sampler_kwargs.replay == recipe.replay


def test_osworld_recipe_follows_the_paper():
    recipe = compose_recipe("osworld_full", "data.train_files=tasks.json", "data.val_files=tasks.json")
    actor = recipe.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.optim.lr) == (0.2, 0.3, 1e-6)
    assert recipe.data.max_prompt_length + recipe.data.max_response_length == 65536
    assert (recipe.gui_agent.max_steps, recipe.gui_agent.max_screenshots) == (15, 15)
    assert (recipe.actor_rollout_ref.rollout.n, recipe.trainer.total_epochs) == (8, 15)
    assert recipe.environment.num_desktops == recipe.data.train_batch_size * recipe.actor_rollout_ref.rollout.n
