"""Sample tokens from logits, with the log-probabilities that the trainer will recompute."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from arpo_verl.engines.cpu.generation.types import SamplingParams

# float64's uniform draws are below 1, but their product with the cumulated sum may round up to it.
_BELOW_ONE = 1.0 - 1e-12


def sample(
    logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float], banned: torch.Tensor
) -> tuple[list[int], list[float]]:
    """Draw one token a row.

    The tokens come from the distribution without the banned ones and within top-p and top-k. The log-probabilities are
    those of the full vocabulary at the temperature alone, as the trainer computes them: so the ratio of new and old
    policy is exactly 1 before the first update, whatever is masked here.

    Args:
        logits: [B, V], float32.
        params: parameters of each of the B rows.
        uniforms: B draws from [0, 1), one a row; unused if the temperature is 0.
        banned: [V], bool, True where a token must never be drawn.

    Returns:
        B token ids and B log-probabilities.
    """
    temperatures = torch.tensor([p.temperature or 1.0 for p in params], dtype=logits.dtype)
    scaled = logits / temperatures[:, None]
    allowed = scaled.masked_fill(banned, float("-inf"))
    tokens = allowed.argmax(dim=-1)
    drawn = [row for row, p in enumerate(params) if p.temperature > 0]
    if drawn:
        kept = _truncate(allowed[drawn], [params[row] for row in drawn])
        tokens[drawn] = _draw(kept, [uniforms[row] for row in drawn])
    log_probs = scaled.gather(1, tokens[:, None])[:, 0] - scaled.logsumexp(dim=-1)
    return tokens.tolist(), log_probs.tolist()


def _draw(logits: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """Invert each row's cumulated distribution at its uniform draw, which never hits a token of probability 0."""
    cumulated = logits.double().softmax(dim=-1).cumsum(dim=-1)
    points = torch.tensor(uniforms, dtype=torch.float64).clamp(max=_BELOW_ONE) * cumulated[:, -1]
    return torch.searchsorted(cumulated, points[:, None], right=True)[:, 0]


def _truncate(logits: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Apply each row's top-k, then its top-p over the rest, as vLLM does."""
    vocab_size = logits.shape[-1]
    top_k = torch.tensor([p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params])
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64)
    if bool((top_k == vocab_size).all()) and bool((top_p == 1.0).all()):
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(torch.arange(vocab_size) >= top_k[:, None], float("-inf"))
    probs = ordered.double().softmax(dim=-1)
    # A token stays if those before it have not reached top_p, so the likeliest one always stays.
    beyond = (probs.cumsum(dim=-1) - probs >= top_p[:, None]) & (top_p[:, None] < 1.0)
    ordered = ordered.masked_fill(beyond, float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ordered)
