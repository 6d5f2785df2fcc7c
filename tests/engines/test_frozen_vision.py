"""What a frozen vision tower made of a screenshot is kept: equal to what it makes, and never a trained tower's."""

import copy

import pytest
import torch
from verl.models.transformers.qwen2_vl import unpack_visual_output

from arpo_verl.engines.optimizer import keep_features
from arpo_verl.engines.pixels import KeptTensors

GRID = torch.tensor([[1, 4, 8]])


@pytest.fixture
def tower():
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

    sizes = {"depth": 2, "hidden_size": 24, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16}
    config = Qwen2_5_VLVisionConfig(**sizes, fullatt_block_indexes=[1])
    tower = Qwen2_5_VisionTransformerPretrainedModel(config).requires_grad_(False)
    tower.looks = 0

    def count(*_):
        tower.looks += 1

    tower.patch_embed.register_forward_hook(count)
    return tower


def pixels(seed=0):
    return torch.randn(32, 1176, generator=torch.Generator().manual_seed(seed))


def features(tower, shown, grid=GRID):
    """As veRL gets them."""
    return unpack_visual_output(tower(shown, grid_thw=grid))[0]


def test_a_screenshot_is_looked_at_once_whether_gradients_are_on_or_not(tower):
    keep_features()
    expected = features(copy.deepcopy(tower).requires_grad_(True), pixels())
    tower.looks = 0
    with torch.no_grad():
        first = features(tower, pixels())
    assert torch.equal(first, expected)
    assert torch.equal(features(tower, pixels()), expected)
    assert tower.looks == 1
    assert not torch.equal(features(tower, pixels(1)), expected)
    features(tower, pixels(), torch.tensor([[1, 8, 4]]))
    assert tower.looks == 3


def test_a_tower_that_is_trained_looks_each_time_and_gets_its_gradients(tower):
    keep_features()
    features(tower, pixels())
    tower.merger.requires_grad_(True)
    for _ in range(2):
        features(tower, pixels()).sum().backward()
    assert tower.looks == 3
    assert all(p.grad is not None for p in tower.merger.parameters())


def test_two_towers_share_nothing(tower):
    keep_features()
    other = copy.deepcopy(tower)
    torch.nn.init.normal_(other.patch_embed.proj.weight)
    assert not torch.equal(features(tower, pixels()), features(other, pixels()))


def test_the_oldest_tensors_go_first():
    kept, made = KeptTensors(2 * 4), []
    for key in (0, 1, 0, 2, 0, 1):
        kept.get(key, lambda key=key: made.append(key) or torch.zeros(1))
    assert made == [0, 1, 2, 1] and len(kept) == 2 and kept.num_bytes == 8
