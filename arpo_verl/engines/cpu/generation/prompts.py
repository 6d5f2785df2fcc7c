"""Turn a prompt with images into the model's input: content, positions and image features."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL.Image import Image

from arpo_verl.lib.images import content_of

# The features of this many images are kept, about as many as one rollout batch has screenshots.
_MAX_IMAGES = 256


@dataclass
class PreparedImage:
    """An image in the form that the model takes.

    Attributes:
        digest: hash of its content and processor options, negative, so that it is never a token id.
        grid: [3], patches in time, height and width.
        pixel_values: [patches, channels]; None once `features` are computed.
        features: [visual tokens, hidden], under the current weights.
    """

    digest: int
    grid: torch.Tensor
    pixel_values: torch.Tensor | None
    features: torch.Tensor | None = None


@dataclass(frozen=True)
class PreparedPrompt:
    """A prompt that is ready for the model.

    Attributes:
        token_ids: [tokens], int64.
        content: [tokens], int64, the token ids, with each image's digest in place of its placeholders. Where two
            prompts' content begins alike, so do their keys and values.
        positions: [3, tokens], rotary positions in time, height and width.
        next_position: position of the first generated token, in all three.
        images: each image, with its placeholders' first and one-past-last index.
    """

    token_ids: torch.Tensor
    content: np.ndarray
    positions: torch.Tensor
    next_position: int
    images: tuple[tuple[PreparedImage, int, int], ...] = field(default=())


class PromptPreparer:
    """Prepares prompts as the trainer does: with the same image processor and `get_rope_index`.

    Args:
        processor: a Qwen2-VL or Qwen2.5-VL processor with veRL's `get_rope_index` bound to it.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._image_token = int(processor.image_token_id)
        self._video_token = int(processor.video_token_id)
        self._merge = int(processor.image_processor.merge_size) ** 2
        self._images: OrderedDict[int, PreparedImage] = OrderedDict()

    def prepare(
        self, prompt_ids: Sequence[int], images: Sequence[Image], processor_kwargs: Mapping[str, Any]
    ) -> PreparedPrompt:
        """Prepare one prompt.

        Raises:
            ValueError: the placeholders do not fit the images, or one stands for a video.
        """
        token_ids = torch.tensor(prompt_ids, dtype=torch.int64)
        if bool((token_ids == self._video_token).any()):
            raise ValueError("the rollout engine `transformers` takes images only, got a prompt with a video; use vllm")
        prepared = [self._image(image, processor_kwargs) for image in images]
        spans = self._spans(token_ids, prepared)
        content = token_ids.numpy().copy()
        for image, (start, stop) in zip(prepared, spans, strict=True):
            content[start:stop] = image.digest
        positions = self._positions(token_ids, prepared)
        placed = tuple((image, *span) for image, span in zip(prepared, spans, strict=True))
        return PreparedPrompt(token_ids, content, positions, int(positions.max()) + 1, placed)

    def clear(self) -> None:
        """Forget all images: their features come from weights that the model no longer has."""
        self._images.clear()

    def _image(self, image: Image, processor_kwargs: Mapping[str, Any]) -> PreparedImage:
        digest = _digest(image, processor_kwargs)
        if digest not in self._images:
            inputs = self._processor.image_processor(images=[image], return_tensors="pt", **processor_kwargs)
            self._images[digest] = PreparedImage(digest, inputs["image_grid_thw"][0], inputs["pixel_values"])
            while len(self._images) > _MAX_IMAGES:
                self._images.popitem(last=False)
        self._images.move_to_end(digest)
        return self._images[digest]

    def _spans(self, token_ids: torch.Tensor, images: Sequence[PreparedImage]) -> list[tuple[int, int]]:
        """Return the first and one-past-last placeholder of each image."""
        places = (token_ids == self._image_token).nonzero()[:, 0].tolist()
        sizes = [int(image.grid.prod()) // self._merge for image in images]
        if len(places) != sum(sizes):
            raise ValueError(
                f"the prompt's {len(images)} images make {sum(sizes)} visual tokens, but it has {len(places)} image "
                "placeholders; give the images and processor options that the prompt was made with"
            )
        spans, first = [], 0
        for size in sizes:
            spans.append((places[first], places[first + size - 1] + 1))
            first += size
        return spans

    def _positions(self, token_ids: torch.Tensor, images: Sequence[PreparedImage]) -> torch.Tensor:
        positions, _ = self._processor.get_rope_index(
            input_ids=token_ids[None],
            mm_token_type_ids=(token_ids == self._image_token).long()[None],
            image_grid_thw=torch.stack([image.grid for image in images]) if images else None,
        )
        only_row: torch.Tensor = positions[:, 0]
        return only_row


def _digest(image: Image, processor_kwargs: Mapping[str, Any]) -> int:
    hashed = hashlib.sha256(content_of(image))
    hashed.update(repr((image.mode, image.size, sorted(processor_kwargs.items()))).encode())
    return -1 - int.from_bytes(hashed.digest()[:8], "big") // 2
