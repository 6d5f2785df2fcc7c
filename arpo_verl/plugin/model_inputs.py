"""Compute the model's inputs beside the token ids: screenshots that become pixel values later, and position ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from verl.experimental.agent_loop import AgentLoopWorker
from verl.utils import get_processor_token_id, hf_processor, hf_tokenizer
from verl.utils.fs import copy_to_local

from arpo_verl.agent.rollout.vision import ImageGeometry
from arpo_verl.engines.pixels import pixel_values
from arpo_verl.errors import ConfigError, ReplayError
from arpo_verl.lib.images import image_size
from arpo_verl.plugin.settings import PolicyFiles


class ModelInputs(AgentLoopWorker):
    """Uses veRL's computation of position ids without its worker, and makes pixel values later."""

    def __init__(self, tokenizer: Any, processor: Any, mm_processor_kwargs: Mapping[str, Any] | None = None) -> None:
        # No super().__init__(): it starts a rollout worker. The functions that we use need only these three.
        self.tokenizer = tokenizer
        self.processor = processor
        self.mm_processor_kwargs = dict(mm_processor_kwargs or {})

    @classmethod
    def load(cls, policy: PolicyFiles, mm_processor_kwargs: Mapping[str, Any]) -> ModelInputs:
        """Load tokenizer and processor as the rollout workers do: first like veRL's `HFModelConfig.__post_init__`, then
        like `AgentLoopWorker.__init__`, which gives the tokenizer the custom chat template too.

        Raises:
            ConfigError: the folder contains no multimodal processor.
        """
        local_path = copy_to_local(policy.processor)
        processor = hf_processor(local_path, trust_remote_code=policy.trust_remote_code)
        if processor is None:
            raise ConfigError(
                "actor_rollout_ref.model.path (or tokenizer_path, if set) must contain the processor of a "
                f"vision-language model, got {policy.processor!r}"
            )
        tokenizer = hf_tokenizer(local_path, trust_remote_code=policy.trust_remote_code)
        if policy.custom_chat_template is not None:
            processor.chat_template = tokenizer.chat_template = policy.custom_chat_template
        elif not getattr(processor, "chat_template", None):
            processor.chat_template = tokenizer.chat_template
        return cls(tokenizer, processor, mm_processor_kwargs)

    def compute(
        self,
        screenshots: Sequence[bytes],
        input_ids: torch.Tensor,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], torch.Tensor]:
        """Return `multi_modal_inputs` and `position_ids` (4, T) of one row with these screenshots; `input_ids` is (T,).

        Pixel values are `LazyPixels`, even if rollouts carry tensors: veRL accepts both side by side.

        Args:
            mm_processor_kwargs: the rollout's own, if it had any.

        Raises:
            ReplayError: the screenshots' sizes do not fit the number of visual tokens in the sequence.
        """
        kwargs = self._get_mm_processor_kwargs() if mm_processor_kwargs is None else mm_processor_kwargs
        multi_modal_inputs = lazy_inputs(screenshots, input_ids, self.processor, kwargs)
        self._check_visual_tokens(input_ids, multi_modal_inputs)
        attention_mask = torch.ones_like(input_ids)
        position_ids = self._compute_position_ids(
            input_ids.unsqueeze(0), attention_mask.unsqueeze(0), multi_modal_inputs
        )
        return multi_modal_inputs, position_ids.squeeze(0)

    def check_stored(
        self, screenshots: Sequence[bytes], token_ids: Sequence[int], mm_processor_kwargs: Mapping[str, Any] | None
    ) -> None:
        """Check a stored row for `replay/rules.py`; its arguments become those of the image processor.

        Raises:
            ReplayError: the arguments are not this run's, or the screenshots do not fit the tokens.
        """
        for name, value in (mm_processor_kwargs or {}).items():
            is_limit = name in ("min_pixels", "max_pixels") and type(value) is int and value > 0
            if not is_limit and self.mm_processor_kwargs.get(name) != value:
                raise ReplayError(f"its mm_processor_kwargs must be this run's, got {name}={value!r:.80}")
        self.compute(screenshots, torch.tensor(token_ids), mm_processor_kwargs)

    def _check_visual_tokens(self, input_ids: torch.Tensor, multi_modal_inputs: Mapping[str, Any]) -> None:
        expected = input_ids.tolist().count(get_processor_token_id(self.processor, "image"))
        grid = multi_modal_inputs.get("image_grid_thw")
        merged = self.processor.image_processor.merge_size**2
        got = 0 if grid is None else int(grid.prod(dim=-1).sum()) // merged
        if got != expected:
            raise ReplayError(
                f"the stored screenshots must give the sequence's {expected} visual tokens, got {got}; keep the "
                "processor's pixel limits and data.mm_processor_kwargs"
            )


def lazy_inputs(
    screenshots: Sequence[bytes], input_ids: torch.Tensor, processor: Any, mm_processor_kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a row's `multi_modal_inputs` like veRL's `_compute_multi_modal_inputs`, without computing pixels.

    Positions and visual tokens depend only on the grid of patches, which follows from an image's size.

    Args:
        screenshots: the screenshots that the row shows, in order.
        input_ids: the row's tokens, (T,).
    """
    # Its values do not matter: `_compute_position_ids` removes them and computes its own.
    inputs: dict[str, Any] = {"mm_token_type_ids": torch.zeros_like(input_ids)}
    if screenshots:
        geometry = ImageGeometry.from_processor(processor, mm_processor_kwargs)
        patch = processor.image_processor.patch_size
        sizes = [geometry.image_size(image_size(screenshot)) for screenshot in screenshots]
        grid = torch.tensor([[1, size.height // patch, size.width // patch] for size in sizes])
        inputs["pixel_values"] = pixel_values(screenshots, processor.image_processor, mm_processor_kwargs)
        inputs["image_grid_thw"] = grid
        inputs["images_seqlens"] = grid[:, 1] * grid[:, 2]
    return inputs
