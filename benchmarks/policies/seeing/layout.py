"""What each part of the policy's hidden states is for, and the codes of words and coordinates in them.

A large model finds such an order by itself; one of three million parameters that is taught for an hour on one core is
given it: every lesson has a target within these parts, and the layers' first weights pass them on unharmed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from arpo_verl.types import Size

if TYPE_CHECKING:
    import torch

SCREEN = Size(448, 336)
CELL = 28
"""Side of a visual token, pixels."""
COLUMNS, ROWS = SCREEN.width // CELL, SCREEN.height // CELL

HIDDEN = 192
HEAD = 64
WORD = slice(0, 42)
"""Which word a token is, or a visual token shows."""
SAID = slice(42, 84)
"""Which word is to be written next."""
X = slice(84, 108)
"""On a visual token: where the middle of its text is; on a text token: the number to be written next."""
Y = slice(108, 132)
REST = slice(132, 192)


@lru_cache(maxsize=4)
def spread_codes(count: int, size: int, seed: int = 0) -> torch.Tensor:
    """`count` directions of `size` dimensions, (count, size) of norm 1, as far from one another as they get."""
    import torch

    codes = torch.randn(count, size, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    optimizer = torch.optim.Adam([codes], lr=0.02)
    with torch.enable_grad():
        for _ in range(400):
            unit = torch.nn.functional.normalize(codes, dim=-1)
            loss = (30 * (unit @ unit.T - torch.eye(count)).abs()).exp().mean().log()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return torch.nn.functional.normalize(codes.detach(), dim=-1)


def place_code(values: torch.Tensor, size: int = X.stop - X.start) -> torch.Tensor:
    """Codes of coordinates in pixels, (..., size) of norm 1: near ones are alike, by cosines and sines of periods from
    40 to 1024 pixels."""
    import torch

    half = size // 2
    periods = 40 * (1024 / 40) ** (torch.arange(half) / (half - 1))
    angles = values[..., None] * (2 * torch.pi / periods)
    code: torch.Tensor = torch.cat([angles.cos(), angles.sin()], -1) / half**0.5
    return code
