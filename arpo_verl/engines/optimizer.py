"""Provide AdamW for RL from the policy `seeing`: its vision tower and its lower layers stay as they were made.

The frozen tower sees each screenshot once. A training step passes over a row at least twice, for its log-probs and for
its update, and other rows show the same screen: a task's first, or a replay's. The tower is three quarters of a pass of
that policy. Frozen, it answers the same each time, bit by bit.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import torch

from arpo_verl.engines.pixels import KeptTensors

KEPT_BYTES = 128 << 20
"""Most bytes of features that a process keeps, newest first: 900 screenshots of 448x336 of the policy `seeing`."""


class UpperLayersAdamW(torch.optim.AdamW):
    """Trains only the language model's two last layers and the last norm. All else is frozen, also the vision tower.

    veRL loads it by `actor.optim.optimizer_impl` and `optimizer`, and builds it before the first forward pass. So
    FSDP2 never asks for gradients of frozen parameters. The frozen tower looks at each screenshot once.

    Args:
        parameters: those of a Qwen2.5-VL with a head of its own, in the order of `Module.parameters`.
        options: options of `torch.optim.AdamW`.

    Raises:
        ValueError: the last parameters are not two equal layers, a norm and a head.
    """

    LAYER = 12
    """Number of tensors in a layer. After the last two layers come the last norm and the head."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], **options: Any) -> None:
        *frozen, norm, head = parameters
        layers = frozen[-2 * self.LAYER :]
        shapes = [parameter.shape for parameter in layers]
        if (
            len(shapes) != 2 * self.LAYER
            or shapes[: self.LAYER] != shapes[self.LAYER :]
            or (norm.ndim, head.ndim) != (1, 2)
        ):
            raise ValueError(
                f"the model must end with two layers of {self.LAYER} tensors each, a norm and a head, as a Qwen2.5-VL "
                f"without LoRA whose embeddings are not tied, got {[tuple(p.shape) for p in (*layers, norm, head)]}; "
                "for another model set actor_rollout_ref.actor.optim.optimizer_impl=torch.optim and optimizer=AdamW"
            )
        for parameter in (*frozen[: -2 * self.LAYER], head):
            parameter.requires_grad_(False)
        keep_features()
        super().__init__([*layers, norm], **options)


def _key_of(pixel_values: torch.Tensor, grid_thw: torch.Tensor) -> bytes:
    """Return a hash of these patches (P, C) and their grid."""
    shown = sha256(pixel_values.detach().contiguous().view(torch.uint8).numpy().data)
    shown.update(repr((grid_thw.tolist(), pixel_values.dtype)).encode())
    return shown.digest()


@functools.cache
def keep_features() -> None:
    """Let this process keep the features of Qwen2.5-VL's vision towers while they are frozen and on the CPU.

    No plugin point of veRL 0.9.1 reaches the tower: `models/transformers/qwen2_vl.py` calls `model.visual`. So this
    replaces `Qwen2_5_VisionTransformerPretrainedModel.forward` (transformers 5.9). The tower must have its weights: it
    is not asked again about a screenshot after others were loaded.
    """
    from transformers.modeling_outputs import BaseModelOutputWithPooling
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel as Tower

    upstream = Tower.forward
    kept: WeakKeyDictionary[torch.nn.Module, KeptTensors] = WeakKeyDictionary()

    @functools.wraps(upstream)
    def forward(self: Tower, hidden_states: torch.Tensor, grid_thw: torch.Tensor, **kwargs: Any) -> Any:
        if kwargs or hidden_states.device.type != "cpu" or any(p.requires_grad for p in self.parameters()):
            return upstream(self, hidden_states, grid_thw=grid_thw, **kwargs)
        of_tower, key = kept.setdefault(self, KeptTensors(KEPT_BYTES)), _key_of(hidden_states, grid_thw)
        features = of_tower.get(key, lambda: upstream(self, hidden_states, grid_thw).pooler_output.detach())
        return BaseModelOutputWithPooling(pooler_output=features)  # type: ignore[arg-type]

    Tower.forward = forward  # type: ignore[method-assign]
