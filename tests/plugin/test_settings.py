"""A recipe's section as plain values."""

import pytest
from omegaconf import OmegaConf

from arpo_verl.errors import ConfigError
from arpo_verl.plugin.settings import plain_section


def test_interpolations_are_resolved_and_plain_values_stay():
    recipe = OmegaConf.create({"size": 8, "replay": {"capacity": "${size}", "seeds": ["a"]}})
    assert plain_section("replay", recipe.replay) == {"capacity": 8, "seeds": ["a"]}
    assert plain_section("replay", {"capacity": 8}) == {"capacity": 8}


@pytest.mark.parametrize("section", [OmegaConf.create([1, 2]), "capacity=8", None])
def test_what_is_no_mapping_is_refused_by_name(section):
    with pytest.raises(ConfigError, match="section `replay` must map names to values, got"):
        plain_section("replay", section)
