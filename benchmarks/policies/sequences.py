"""A demonstration as the token sequences that the agent loop would have made of it, and batches of those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from arpo_verl.records.recorded import RecordedEpisode
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.conversation import TokenLimits
from arpo_verl.types import Size

if TYPE_CHECKING:
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

# A demonstration is never too long: the run's limits are not known.
_NO_LIMITS = TokenLimits(2**20, 2**20)


@dataclass(frozen=True)
class TokenSequence:
    """A demonstration: T tokens and N screenshots."""

    task_id: str
    input_ids: torch.Tensor
    """(T,) int64, screenshots expanded to their placeholder tokens."""
    reply_mask: torch.Tensor
    """(T,) bool, true on the tokens that the policy writes, the closing `<|im_end|>` included."""
    position_ids: torch.Tensor
    """(3, T) int64: time, height, width."""
    images: tuple[str, ...]
    """(N,) keys into an `ImageStore`, in order."""


class ImageStore:
    """Patches of every screenshot, processed once: demonstrations of one task begin with the same screen."""

    def __init__(self, processor: Qwen2_5_VLProcessor) -> None:
        self._processor = processor
        self._patches: dict[str, torch.Tensor] = {}
        self._grids: dict[str, torch.Tensor] = {}

    def add(self, image: Image.Image) -> str:
        """Keep an image's patches, unless they are kept; returns its key."""
        key = sha256(f"{image.mode}{image.size}".encode() + image.tobytes()).hexdigest()
        if key not in self._patches:
            inputs = self._processor.image_processor(images=[image], return_tensors="pt")
            self._patches[key], self._grids[key] = inputs["pixel_values"], inputs["image_grid_thw"]
        return key

    def pixel_values(self, keys: Sequence[str]) -> torch.Tensor:
        """Patches of the images one after the other, (patches, channels x time x 14 x 14) float32."""
        return torch.cat([self._patches[key] for key in keys])

    def grids(self, keys: Sequence[str]) -> torch.Tensor:
        """(N, 3) int64: time, height, width in patches."""
        return torch.cat([self._grids[key] for key in keys])


class SequenceBuilder:
    """Tokenizes demonstrations through the very code that the agent loop uses.

    So a reply that the policy is taught stands behind exactly the tokens that it will see when it acts.
    """

    def __init__(self, processor: Any, agent: GuiAgentConfig) -> None:
        """`processor` as `arpo_verl.plugin.settings.load_processor` loads it, with a method that veRL binds to it;
        `agent` as in the runs that the policy is for.
        """
        from arpo_verl.plugin.seeding import SeedPolicy
        from arpo_verl.plugin.settings import chat_tokenizer
        from arpo_verl.replay.fingerprint import model_fingerprint

        self._processor = processor
        self._chat = chat_tokenizer(processor.tokenizer, processor, "qwen2_5_vl")
        fingerprint = model_fingerprint(processor.tokenizer, processor, {}, agent)
        self._policy = SeedPolicy(self._chat, agent, _NO_LIMITS, {}, fingerprint)
        self.images = ImageStore(processor)

    def image_size(self, screen: Size) -> Size:
        """The size of a resized screenshot: what the coordinates in replies are in."""
        return self._chat.geometry.image_size(screen)

    def build(self, demonstration: RecordedEpisode) -> TokenSequence:
        """Tokenize one demonstration.

        Raises:
            ReplayError: it has not one screenshot before each reply, or a reply is not in the grammar.
        """
        keys = [self.images.add(screenshot) for screenshot in demonstration.images()]
        (row,) = self._policy.tokenize(demonstration)
        input_ids = torch.tensor(row.token_ids)
        mask = torch.tensor([0] * len(row.prompt_ids) + row.response_mask, dtype=torch.bool)
        positions = self._position_ids(input_ids, self.images.grids(keys))
        return TokenSequence(demonstration.task_id, input_ids, mask, positions, tuple(keys))

    def _position_ids(self, input_ids: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
        is_image = (input_ids == self._chat.image_id).int()
        positions, _ = self._processor.get_rope_index(
            input_ids=input_ids[None], mm_token_type_ids=is_image[None], image_grid_thw=grids
        )
        only_row: torch.Tensor = positions[:, 0]
        return only_row


def reply_log_probs(
    model: Qwen2_5_VLForConditionalGeneration, images: ImageStore, sequences: Sequence[TokenSequence]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the reply tokens of a batch at temperature 1.

    Screenshots that occur several times in the batch pass the vision tower once.

    Returns:
        Log-probabilities (R,) float32 of all R reply tokens, row after row, and the row (R,) int64 each belongs to.
    """
    # Padding on the right is behind every real token, so no causal attention sees it, whatever it is.
    ids = _pad([s.input_ids for s in sequences], 0)
    mask = _pad([s.reply_mask for s in sequences], False)
    positions = _pad([s.position_ids.T for s in sequences], 0).permute(2, 0, 1)
    attention = _pad([torch.ones_like(s.input_ids) for s in sequences], 0)
    unique = list(dict.fromkeys(key for s in sequences for key in s.images))
    features = dict(zip(unique, _encode(model, images, unique), strict=True))
    embeds = model.get_input_embeddings()(ids)
    visual = torch.cat([features[key] for s in sequences for key in s.images])
    embeds = embeds.masked_scatter((ids == model.config.image_token_id)[..., None].expand_as(embeds), visual)
    hidden = model.model(inputs_embeds=embeds, position_ids=positions, attention_mask=attention).last_hidden_state
    # The token at t is predicted at t - 1; only the positions before reply tokens need logits.
    targets, rows = ids[:, 1:][mask[:, 1:]], torch.nonzero(mask[:, 1:])[:, 0]
    logits = model.lm_head(hidden[:, :-1][mask[:, 1:]]).float()
    return logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0], rows


def _encode(
    model: Qwen2_5_VLForConditionalGeneration, images: ImageStore, keys: Sequence[str]
) -> Sequence[torch.Tensor]:
    outputs = model.model.get_image_features(images.pixel_values(keys), images.grids(keys))
    features: Sequence[torch.Tensor] = outputs.pooler_output
    return features


def _pad(rows: Sequence[torch.Tensor], value: float) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)
