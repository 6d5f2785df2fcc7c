"""The vision tower on many screens at once: what `Qwen2_5_VisionTransformer` computes one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.nn import functional

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
    handed = list(_blocks(visual, patches))
    merger, joined = visual.merger, visual.merger.ln_q(handed[-1]).view(len(patches), -1, visual.merger.hidden_size)
    hidden = merger.mlp[1](merger.mlp[0](joined))
    return merger.mlp[2](hidden), handed[early], hidden


def encode_early(visual: Any, patches: torch.Tensor, early: int) -> torch.Tensor:
    """What a block hands on, as `encode` returns it; no block behind it is computed."""
    return next(islice(_blocks(visual, patches), early, None))


def _blocks(visual: Any, patches: torch.Tensor) -> Iterator[torch.Tensor]:
    """What each block hands on, (B, 768, hidden size of the tower), in the patches' order."""
    order, (cos, sin), window = _plan(visual.config.window_size, visual.rotary_pos_emb)
    batch, count, _ = patches.shape
    # Both frames of a still picture are the same: half of the work.
    kernel = visual.patch_embed.proj.weight.sum(2).flatten(1)
    still = patches.view(batch, count, 3, 2, -1)[:, :, :, 0].flatten(2)
    x, restored = functional.linear(still, kernel)[:, order], torch.argsort(order)
    for number, block in enumerate(visual.blocks):
        whole = number in visual.config.fullatt_block_indexes
        x = x + _attend(block.attn, block.norm1(x), cos, sin, count if whole else window)
        x = x + block.mlp(block.norm2(x))
        yield x[:, restored]


def _attend(attn: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, window: int) -> torch.Tensor:
    batch, count, size = x.shape
    q, k, v = attn.qkv(x).view(batch, count, 3, attn.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    q, k = (_rotated(part, cos, sin).to(v.dtype) for part in (q, k))
    windows = (batch, attn.num_heads, count // window, window, -1)
    # Four axes: with more there is no fast kernel.
    q, k, v = (part.reshape(windows).transpose(1, 2).flatten(0, 1) for part in (q, k, v))
    out = functional.scaled_dot_product_attention(q, k, v, scale=attn.scaling)
    joined: torch.Tensor = attn.proj(out.transpose(1, 2).reshape(batch, count, size))
    return joined


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


@lru_cache(maxsize=2)
def _plan(window_size: int, rotary: Any) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor], int]:
    """Patches in the order of windows, their rotations in that order, and the patches of a window."""
    from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

    grid = torch.tensor([[1, *_GRID]])
    index, bounds = get_vision_window_index(
        grid, spatial_merge_size=MERGE_SIZE, window_size=window_size, patch_size=PATCH_SIZE
    )
    sizes = {int(size) for size in bounds.diff()} - {0}
    assert len(sizes) == 1  # windows that tile the screen
    order = (index[:, None] * MERGE_SIZE**2 + torch.arange(MERGE_SIZE**2)).flatten()
    angles = rotary(get_vision_position_ids(grid, MERGE_SIZE))[order].detach()
    return order, (angles.cos(), angles.sin()), sizes.pop()
