"""Name of the rollout engine `transformers` in veRL's registries, and its options in a recipe.

actor_rollout_ref.rollout:
  name: transformers
  engine_kwargs: {transformers: {max_batch_size: 16, num_threads: 1}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from arpo_verl.lib.config import build_config, check_fields, whole

NAME = "transformers"
_SECTION = f"actor_rollout_ref.rollout.engine_kwargs.{NAME}"
_Positive = Annotated[int, whole(1, "a positive integer")]


@dataclass(frozen=True)
class EngineOptions:
    """The engine's options, `actor_rollout_ref.rollout.engine_kwargs.transformers` in a recipe.

    Attributes:
        max_batch_size: requests that generate together; more wait for a place.
        max_batch_tokens: prompt tokens that one forward pass may take in, beside the first request's, which always fit.
        kv_cache_tokens: tokens of finished requests whose keys and values are kept; above this the oldest are dropped.
            A small model takes some KB a token.
        prefix_reuse: continue from the keys and values of an earlier request with the same beginning.
        num_threads: torch threads of the engine. One is fastest for a small model, whose operations are too short
            to share out, above all if desktops run on the same cores.
    """

    max_batch_size: _Positive = 32
    max_batch_tokens: _Positive = 4096
    kv_cache_tokens: _Positive = 65536
    prefix_reuse: bool = True
    num_threads: _Positive = 1

    def __post_init__(self) -> None:
        check_fields(self, _SECTION)


def engine_options(engine_kwargs: Mapping[str, Any] | None) -> EngineOptions:
    """Read the options from veRL's `rollout.engine_kwargs`."""
    return build_config(EngineOptions, _SECTION, (engine_kwargs or {}).get(NAME))
