"""AdamW for RL from the policy that sees: what its vision tower and its first layers were made with stays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class UpperLayersAdamW(torch.optim.AdamW):
    """AdamW of the language model's two last layers; all below, the vision tower too, is frozen, and so is the head.

    veRL takes it by `actor.optim.optimizer_impl` and `optimizer`, and builds it before the first forward pass, so that
    FSDP2 never asks for the gradients of what is frozen.

    Args:
        parameters: of a Qwen2.5-VL with a head of its own, in `Module.parameters`' order.
        options: of `torch.optim.AdamW`.

    Raises:
        ValueError: the last parameters are not two equal layers, a norm and a head.
    """

    LAYER = 12
    """Tensors of a layer; behind two of them stand the last norm's and the head's."""

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
        super().__init__([*layers, norm], **options)
