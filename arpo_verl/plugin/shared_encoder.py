"""Share an episode's screenshots among the GPUs that share its sequence: each encodes a part, all get all features.

veRL splits a sequence (Ulysses) only behind its embeddings, so each of its GPUs encodes all screenshots (0.9.1,
`models/transformers/qwen2_vl.py` and `qwen3_vl.py: _get_input_embeds`). With `osworld_full` on an H100 an update takes
5.7 s instead of 9.8 s, and at its peak 24 GB instead of 37 GB. There is no plugin point. veRL's pull request 5230 would
share them too; this module goes once a release does.

Gradients stay as they are. A rank's loss depends on the features of its own part of the sequence alone. So without
sharing a rank's gradient of the encoder is a sum over all images and its own tokens, and FSDP adds these up over ranks.
Here we first add up the features' gradients over the ranks. A rank's gradient of the encoder is then a sum over its own
images and all tokens, and FSDP's sum is the same. Each feature has a gradient on one rank only, so adding them up is
exact in any precision.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
"""Models whose encoder returns features as we expect."""


def share_encoder(apply: Callable[..., None]) -> Callable[..., None]:
    """Make the model's image encoder share, after veRL has adapted the model to a split sequence.

    We replace `forward` of the one module, inside its hooks and FSDP's.

    Args:
        apply: veRL's `apply_monkey_patch`.
    """

    @functools.wraps(apply)
    def apply_and_share(model: Any, ulysses_sp_size: int = 1, *args: Any, **kwargs: Any) -> None:
        apply(model, ulysses_sp_size, *args, **kwargs)
        visual = getattr(getattr(model, "model", None), "visual", None)
        if ulysses_sp_size > 1 and visual is not None and model.config.model_type in FAMILIES:
            visual.forward = functools.partial(encode_share, visual.forward, visual.spatial_merge_unit)

    return apply_and_share


def encode_share(
    encode: Callable[..., Any], patches_per_feature: int, hidden_states: torch.Tensor, grid_thw: torch.Tensor
) -> Any:
    """Encode this rank's images, or all outside of veRL's train and eval modes.

    Every rank encodes once, since FSDP gathers weights for all ranks together. One without an image encodes the
    smallest and drops its features.

    Args:
        encode: the encoder's own `forward`.
        patches_per_feature: number of patches that the encoder merges.
        hidden_states: the pixel values of all images, (P, C).
        grid_thw: each image's patches in time, height and width, (images, 3).

    Returns:
        the encoder's output with the features of all images, without `last_hidden_state`.
    """
    from verl.utils.ulysses import get_ulysses_sequence_parallel_group

    group = get_ulysses_sequence_parallel_group()
    if group is None:
        return encode(hidden_states, grid_thw)
    patches = grid_thw.prod(dim=-1).tolist()
    shares = divide(patches, dist.get_world_size(group))
    smallest = patches.index(min(patches))
    share = shares[dist.get_rank(group)] or range(smallest, smallest + 1)
    begin, end = sum(patches[: share.start]), sum(patches[: share.stop])
    made = encode(hidden_states[begin:end], grid_thw[share.start : share.stop])
    own = [made.pooler_output, *getattr(made, "deepstack_features", ())]
    counts = [sum(patches[each.start : each.stop]) // patches_per_feature for each in shares]
    together = _FeaturesOfAll.apply(torch.cat(own, dim=-1), counts, group)  # type: ignore[no-untyped-call]
    features, *deepstack = together.split(own[0].shape[-1], dim=-1)
    return type(made)(pooler_output=features, **({"deepstack_features": deepstack} if deepstack else {}))


def divide(patches: Sequence[int], ranks: int) -> list[range]:
    """Divide images among ranks, in order: an image goes where its middle is when all patches are divided evenly.

    Args:
        patches: number of patches of each image.
        ranks: number of ranks.

    Returns:
        each rank's images. Ranks of equally large images differ by one at most; some may have none.
    """
    total, takers = sum(patches), [0] * (ranks + 1)
    for count, end in zip(patches, accumulate(patches), strict=True):
        takers[ranks * (2 * end - count) // (2 * total) + 1] += 1
    ends = list(accumulate(takers))
    return [range(first, last) for first, last in zip(ends, ends[1:], strict=False)]


class _FeaturesOfAll(torch.autograd.Function):
    """Gather the ranks' features, and bring each rank the gradient of its own from all ranks."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, counts: list[int], group: dist.ProcessGroup) -> torch.Tensor:
        """Join the first `counts[rank]` rows of each rank's `own`, (F, H)."""
        ctx.counts, ctx.group, ctx.rows = counts, group, len(own)
        used, longest = counts[dist.get_rank(group)], max(counts)
        received = own.new_empty(len(counts) * longest, own.shape[-1])
        dist.all_gather_into_tensor(received, pad(own[:used], (0, 0, 0, longest - used)), group=group)
        return torch.cat([part[:count] for part, count in zip(received.split(longest), counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        sent = pad_sequence(gradient.split(ctx.counts), batch_first=True)
        received = gradient.new_empty(sent.shape[1:])
        dist.reduce_scatter_tensor(received, sent.flatten(0, 1), group=ctx.group)
        used = ctx.counts[dist.get_rank(ctx.group)]
        return pad(received[:used], (0, 0, 0, ctx.rows - used)), None, None
