"""What long episodes cost in tokens: trained, prefilled, at most in a sequence, by what the model sees of its history.

An episode of 1920x1080 goes through the agent loop's own conversation with UI-TARS-1.5's prompt and pixel limits, and
with replies of some 100 tokens. Every request to the engine is kept, so what its prefix cache holds is counted, not
estimated. The tokenizer is one made here, since model hubs are not asked: visual tokens and the shape of rows are the
model's own, the words of the prompt are not cut as its tokenizer would.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from replay_memory import REPLY, SCREEN, WORDS, Policy

from arpo_verl.cli.composing import compose_recipe
from arpo_verl.cli.recipes import recipes_folder
from arpo_verl.config import build_config
from arpo_verl.plugin.sections import plain_section
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.conversation import TokenConversation, TokenLimits
from arpo_verl.rollout.sequence import EpisodeSequence, Generated
from arpo_verl.types import Task

STEPS = 50
BLOCK = 16
"""Tokens that vLLM caches together."""
UNBOUNDED = TokenLimits(2**20, 2**20)
FULL = GuiAgentConfig(max_steps=STEPS)
CONTEXTS = {
    "full": FULL,
    "window_5": dataclasses.replace(FULL, context="window", max_screenshots=5),
    **{
        f"segments_{most}_{kept}": dataclasses.replace(
            FULL, context="segments", max_screenshots=most, kept_screenshots=kept
        )
        for most, kept in ((10, 5), (10, 1), (15, 5))
    },
}


@dataclass
class Engine:
    """Writes the replies, and counts what an engine with a prefix cache would compute for them."""

    policy: Policy
    rng: random.Random
    cached: list[list[int]] = field(default_factory=list)
    prefilled: list[int] = field(default_factory=list)
    row: EpisodeSequence | None = None

    async def generate(self, token_ids: list[int], images: list[Image.Image], max_tokens: int) -> Generated:
        words = " ".join(self.rng.choices(WORDS, k=70))
        text = REPLY.format(words=words, x=self.rng.randrange(1932), y=self.rng.randrange(1092))
        reply = (*self.policy.chat.tokenizer.encode(text, add_special_tokens=False), self.policy.chat.end_id)
        return Generated(reply, tuple(0.0 for _ in reply))

    def count(self, row: EpisodeSequence) -> None:
        """Take account of the request that a row's newest reply answered."""
        ids = told_apart(row, self.policy.chat.image_id)
        num_reply = len(row.replies[-1].token_ids)
        request = ids[:-num_reply]
        known = max((common_prefix(request, cached) for cached in self.cached), default=0)
        # Whole blocks, and the last token of a request is always computed: the reply's first one comes of it.
        self.prefilled.append(len(request) - min(known, len(request) - 1) // BLOCK * BLOCK)
        self.cached.append(ids[:-1])  # nothing was computed of the reply's last token


def told_apart(row: EpisodeSequence, image_id: int) -> list[int]:
    """A row's tokens, with a number of its own in the place of each screenshot's: a cache knows images by content."""
    ids: list[int] = []
    number = row.screenshots.start - 1
    for before, token in zip([None, *row.token_ids], row.token_ids, strict=False):
        number += token == image_id != before
        ids.append(-1 - number if token == image_id else token)
    return ids


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def play(
    policy: Policy, config: GuiAgentConfig, limits: TokenLimits, steps: int
) -> tuple[list[EpisodeSequence], Engine]:
    """The rows of an episode of so many steps, or of as many as the limits let it have."""
    engine = Engine(policy, random.Random(0))

    async def converse() -> list[EpisodeSequence]:
        conversation = TokenConversation(engine.generate, policy.chat, config, limits)
        conversation.open(Task("task", "Change the text and save it.", {}), SCREEN)
        for number in range(steps):
            if number and conversation.show(SCREEN) is not None:
                break
            await conversation.reply([None] * (number + 1))  # type: ignore[list-item]  # the engine does not look
            engine.count(conversation.rows[-1])
        return conversation.rows

    return asyncio.run(converse()), engine


def measure(policy: Policy, config: GuiAgentConfig, limits: TokenLimits, steps: int) -> dict[str, float]:
    """One episode's figures."""
    rows, engine = play(policy, config, limits, steps)
    lengths = [len(row.token_ids) for row in rows]
    played = rows[-1].screenshots.stop
    shown = sum(len(row.screenshots) for row in rows)
    return {
        "steps": played,
        "rows": len(rows),
        "longest_sequence": max(lengths),
        "tokens_in_loss": sum(sum(row.response_mask) for row in rows),
        "tokens_trained": sum(lengths),
        "tokens_prefilled": sum(engine.prefilled),
        "images_in_rows": shown,
        "pixel_bytes_per_step": shown * pixel_bytes(policy) / played,
    }


def pixel_bytes(policy: Policy) -> int:
    """Of one screenshot, as veRL holds it in `multi_modal_inputs`: float32."""
    processed = policy.inputs.processor.image_processor(images=[Image.new("RGB", SCREEN)], return_tensors="pt")
    nbytes: int = processed["pixel_values"].nbytes
    return nbytes


def measure_recipe(policy: Policy, name: str, steps: int) -> dict[str, Any]:
    """A recipe's own limits: what they allow a sequence, and what an episode comes to under them."""
    recipe = compose_recipe(recipes_folder() / f"{name}.yaml", ["data.train_files=embedded", "data.val_files=embedded"])
    config = build_config(GuiAgentConfig, "gui_agent", plain_section("gui_agent", recipe.gui_agent))
    limits = TokenLimits(
        recipe.data.max_prompt_length,
        recipe.data.max_response_length,
        recipe.actor_rollout_ref.rollout.max_model_len,
    )
    allowed = limits.prompt + limits.response
    longest = allowed if limits.total is None else min(limits.total, allowed)
    return {"max_steps": config.max_steps, "allowed_sequence": longest, **measure(policy, config, limits, steps)}


def figures(folder: Path, steps: int = STEPS) -> dict[str, Any]:
    """`context_tokens` and `longest_sequence_ratio`.

    Args:
        folder: where the processor is written.
        steps: of an episode.
    """
    policy = Policy.build(folder)
    tokens = {name: measure(policy, config, UNBOUNDED, steps) for name, config in CONTEXTS.items()}
    recipes = {name: measure_recipe(policy, name, steps) for name in ("osworld_full", "osworld_window")}
    full, window = (recipes[name]["allowed_sequence"] for name in recipes)
    screenshot = policy.chat.geometry.num_tokens(SCREEN)
    return {
        "context_tokens": {
            "screen": f"{SCREEN.width}x{SCREEN.height}",
            "tokens_of_a_screenshot": screenshot,
            "pixel_bytes_of_a_screenshot": pixel_bytes(policy),
            "contexts": tokens,
            "recipes": recipes,
        },
        "longest_sequence_ratio": window / full,
    }
