"""Provide AdamW for RL from the policy `seeing`: its vision tower and its lower layers stay as they were made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from arpo_verl.policy.frozen_vision import keep_features


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
