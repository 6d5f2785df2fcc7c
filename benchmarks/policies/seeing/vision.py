"""The vision tower on many screens at once, with what its layers hand on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from policies.architecture import MERGE_SIZE, PATCH_SIZE
from policies.seeing.layout import SCREEN

_GRID = (SCREEN.height // PATCH_SIZE, SCREEN.width // PATCH_SIZE)
# CLIP's, as the Qwen2-VL image processor has them.
_MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])
_STD = torch.tensor([0.26862954, 0.26130258, 0.27577711])


def patches_of(pixels: Sequence[np.ndarray]) -> torch.Tensor:
    """Patches of B screens as the image processor makes them, (B, 768, 3 x 2 x 14 x 14) float32.

    Args:
        pixels: each (336, 448, 3) uint8.
    """
    values = torch.from_numpy(np.stack(pixels)).float().div_(255).sub_(_MEAN).div_(_STD)
    height, width = (n // MERGE_SIZE for n in _GRID)
    grid = values.view(len(pixels), height, MERGE_SIZE, PATCH_SIZE, width, MERGE_SIZE, PATCH_SIZE, 3)
    grid = grid.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(len(pixels), -1, 3, 1, PATCH_SIZE**2)
    return grid.expand(-1, -1, -1, 2, -1).reshape(len(pixels), grid.shape[1], -1)


def encode(visual: Any, patches: torch.Tensor, early: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Visual tokens of B screens, (B, 192, hidden size), from `patches_of`'s patches.

    Args:
        early: a block.

    Returns:
        The tokens, row by row; what that block hands on, (B, 768, hidden size of the tower), in the patches' order; and
        the merger's hidden layer, (B, 192, 4 x that size).
    """
    handed: list[torch.Tensor] = []
    parts = (visual.blocks[early], visual.merger.mlp[1])
    hooks = [part.register_forward_hook(lambda _, __, output: handed.append(output)) for part in parts]
    try:
        tokens = visual(patches.flatten(0, 1), torch.tensor([[1, *_GRID]] * len(patches))).pooler_output
    finally:
        for hook in hooks:
            hook.remove()
    # In the order of the tower's windows, four patches a token.
    from_block, hidden = (part.view(len(patches), len(_places(visual)), -1)[:, _places(visual)] for part in handed)
    return tokens.view(*hidden.shape[:2], -1), from_block.reshape(*patches.shape[:2], -1), hidden


@lru_cache(maxsize=2)
def _places(visual: Any) -> torch.Tensor:
    """Where each visual token stands in the order of windows."""
    from transformers.vision_utils import get_vision_window_index

    index, _ = get_vision_window_index(
        torch.tensor([[1, *_GRID]]),
        spatial_merge_size=MERGE_SIZE,
        window_size=visual.config.window_size,
        patch_size=PATCH_SIZE,
    )
    return torch.argsort(index)
