"""Values that no run could start with, and names that look like typos of veRL's options."""

import pytest
from support.composed import compose_recipe

from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import Problems
from arpo_verl.plugin.recipe.values import check_by_verl, check_filled, check_values, doubtful_names, verls_defaults

TASKS = ("data.train_files=embedded", "data.val_files=embedded")
ADDED = (
    "+trainer.anything=1",
    "+my_section={a:1}",
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.new_option=1",
    "+data.train_max_sample_size=3",
    "~trainer.v1.sampler.sampler_kwargs.poll_interval_s",
    "trainer.total_training_steps=null",
    "trainer.save_freq=-1",
)


def problems_of(*overrides, name="embedded"):
    problems = Problems()
    with problems.gather():
        check_values(compose_recipe(name, *overrides))
    return [str(error) for error in problems.errors]


def test_what_a_user_may_add_or_leave_out_passes():
    assert problems_of(*TASKS, *ADDED) == []


def test_an_open_value_of_the_recipes_file_is_not_taken_from_its_base(tmp_path):
    """OmegaConf merges `???` as nothing: a converted recipe trained the base's model."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "data:\n  train_batch_size: ???\n  seed: ???\nactor_rollout_ref:\n  model:\n    path: ???\nrun_dir: a\n"
    )
    with pytest.raises(ConfigError, match=r"(?s)for data.seed \(\?.*for actor_rollout_ref.model.path \(\?\?\?\)"):
        check_filled(compose_recipe("embedded"), recipe, ["data.train_batch_size=4"])
    filled = ["data.train_batch_size=4", "+data.seed=1", "++actor_rollout_ref.model.path=m"]
    check_filled(compose_recipe("embedded"), recipe, filled)


def test_a_path_of_verls_own_example_counts_as_not_given():
    default = verls_defaults()
    own = [f"data.{name}='{default['data'][name]}'" for name in ("train_files", "val_files")]
    model = f"actor_rollout_ref.model.path='{default['actor_rollout_ref']['model']['path']}'"
    assert problems_of(*own, model) == [
        "No task files for training given. Add data.train_files=PATH.",
        "No task files for validation given. Add data.val_files=PATH.",
        "No model given. Add actor_rollout_ref.model.path=FOLDER.",
    ]


def test_no_number_and_a_reference_that_leads_nowhere_are_told():
    assert problems_of(*TASKS, "trainer.nnodes=null", "trainer.save_freq=true") == [
        "trainer.nnodes must be a number of at least 1, got None",
        "trainer.save_freq must be a number, got True",
    ]
    problems = Problems()
    with problems.gather():
        check_by_verl(compose_recipe("embedded", *TASKS, "data.train_batch_size=${data.train_batchsize}"))
    assert str(problems.errors[0]).startswith(
        "veRL refuses the recipe: Interpolation key 'data.train_batchsize' not found"
    )


@pytest.mark.parametrize(
    "name",
    ["demo", "embedded", "families", "osworld_full", "osworld_full_async", "osworld_subset32", "osworld_window"],
)
def test_no_name_of_our_recipes_is_doubtful(name):
    assert doubtful_names(compose_recipe(name)) == []


def test_a_typo_is_noted_and_refused_by_nothing():
    typos = ("+trainer.total_epoch=3", "+gui_agnet.max_steps=3", "+polcy=qwen3_vl")
    assert problems_of(*TASKS, *typos) == []
    assert doubtful_names(compose_recipe("embedded", *typos)) == [
        "trainer.total_epoch is not an option of veRL's; did you mean trainer.total_epochs?",
        "polcy is not an option of veRL's; did you mean policy?",
        "gui_agnet is not an option of veRL's; did you mean gui_agent?",
    ]
