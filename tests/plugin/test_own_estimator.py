"""The advantage estimator of docs/advantages.md: the page's own code, loaded as veRL loads it."""

import ast

import numpy as np
import pytest
import torch
from support import documents
from support.composed import compose_recipe
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, get_adv_estimator_fn
from verl.utils.import_utils import load_extern_object

from arpo_verl.plugin.recipe.options import Recipe
from arpo_verl.plugin.recipe.silent import check_silent
from arpo_verl.plugin.sampler import ReplaySampler
from arpo_verl.replay.labels import RowLabel


@pytest.fixture
def code(monkeypatch):
    """The page's example, and a registry that forgets it."""
    monkeypatch.setattr("verl.trainer.ppo.core_algos.ADV_ESTIMATOR_REGISTRY", dict(ADV_ESTIMATOR_REGISTRY))
    (code,) = documents.code("docs/advantages.md")
    return code


def test_the_sampler_of_the_file_is_ours_and_its_estimator_compares_each_rollout_with_the_others(code, tmp_path):
    path = tmp_path / "my_advantages.py"
    path.write_text(code)
    assert load_extern_object(str(path), "ReplaySampler") is ReplaySampler
    index = np.array([RowLabel("g", f"g_{number}_0", is_replay=number == 0) for number in range(3)], dtype=object)
    rewards, mask = torch.zeros(4, 2), torch.ones(4, 2)
    rewards[:, -1], mask[1, 0] = torch.tensor([1.0, 0.0, 0.5, 1.0]), 0
    advantages, returns = get_adv_estimator_fn("leave_one_out")(
        token_level_rewards=rewards, response_mask=mask, index=np.append(index, "alone")
    )
    # 1 - (0 + 0.5) / 2, 0 - (1 + 0.5) / 2, 0.5 - (1 + 0) / 2; nobody to compare with.
    assert advantages.tolist() == [[0.75, 0.75], [0.0, -0.75], [0.0, 0.0], [0.0, 0.0]] and returns is advantages


def test_it_imports_public_names_alone(code):
    imported = [node for node in ast.walk(ast.parse(code)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [alias.name for node in imported for alias in node.names]
    names += [node.module for node in imported if isinstance(node, ast.ImportFrom)]
    assert not [name for name in names if any(part.startswith("_") for part in name.split("."))]


def test_the_pages_command_composes_and_fits_together():
    (command,) = documents.commands("docs/advantages.md")
    config = compose_recipe(*command.split()[2:])
    assert config.algorithm.adv_estimator == "leave_one_out"
    check_silent(Recipe(config))
