"""`benchmarks/context.py`: what it counts of rows and requests, its options, and its smoke form."""

from pathlib import Path

import pytest

pytest.importorskip("verl")

import context  # noqa: E402
import context_tokens as tokens  # noqa: E402
from replay_memory import Policy  # noqa: E402
from support import ROOT  # noqa: E402

from arpo_verl.rollout.sequence import EpisodeSequence  # noqa: E402

pytestmark = pytest.mark.study
STEPS = 12


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return Policy.build(tmp_path_factory.mktemp("processor"))


@pytest.fixture(scope="module")
def measured(policy):
    names = ("full", "window_5", "segments_10_5")
    return {name: tokens.measure(policy, tokens.CONTEXTS[name], tokens.UNBOUNDED, STEPS) for name in names}


def test_each_screenshot_is_another_to_the_cache():
    row = EpisodeSequence([1, 9, 9, 2, 9, 9], range(3, 5))
    row.add_screenshot([3, 9, 3])
    assert tokens.told_apart(row, image_id=9) == [1, -4, -4, 2, -5, -5, 3, -6, 3]


def test_the_common_prefix_ends_where_one_does():
    assert tokens.common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert tokens.common_prefix([1, 2], [1, 2, 4]) == tokens.common_prefix([1, 2, 4], [1, 2]) == 2


def test_rows_and_images_are_those_of_the_context(measured):
    assert {name: row["rows"] for name, row in measured.items()} == {"full": 1, "window_5": 8, "segments_10_5": 2}
    assert {name: row["images_in_rows"] for name, row in measured.items()} == {
        "full": 12,
        "window_5": 8 * 5,
        "segments_10_5": 10 + 6,
    }
    assert len({row["tokens_in_loss"] for row in measured.values()}) == 1, "each reply is trained once"


def test_a_history_that_grows_is_prefilled_once_and_a_window_that_moves_anew(policy, measured):
    screenshot = policy.chat.geometry.num_tokens(tokens.SCREEN)
    full, window = measured["full"], measured["window_5"]
    # All but the last reply, and at most a block a request that was not whole, and the reply's last token.
    assert full["tokens_trained"] - full["tokens_in_loss"] < full["tokens_prefilled"]
    assert full["tokens_prefilled"] <= full["tokens_trained"] - full["tokens_in_loss"] + STEPS * (tokens.BLOCK + 1)
    assert window["tokens_prefilled"] > (5 + 7 * 5) * screenshot
    assert measured["segments_10_5"]["tokens_prefilled"] < (10 + 6 + 1) * screenshot


def test_the_recipes_bound_their_sequences(policy):
    recipes = {name: tokens.measure_recipe(policy, name, 50) for name in ("osworld_full", "osworld_window")}
    assert recipes["osworld_window"]["allowed_sequence"] <= recipes["osworld_full"]["allowed_sequence"] / 4
    assert (recipes["osworld_full"]["steps"], recipes["osworld_window"]["steps"]) == (15, 50)
    for recipe in recipes.values():
        assert recipe["longest_sequence"] <= recipe["allowed_sequence"]


def test_the_recipe_takes_the_options_of_both():
    from arpo_verl.cli.composing import compose_recipe

    study = context.ContextStudy(
        *(Path("policy"), Path("tasks"), 100, 4, 1, 1e-4, 1),
        groups=8,
        validation_rollouts=2,
        max_steps=8,
    )
    for method in context.AGENT:
        config = compose_recipe(ROOT / "recipes" / "embedded.yaml", study.overrides(method, seed=2))
        assert (config.gui_agent.context, config.gui_agent.max_steps) == (method, 8)
        assert config.gui_agent.max_screenshots == {"full": None, "window": 2}[method]
        assert (config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size) == (8, 2)
