"""This module turns veRL's sampling parameters, a plain dict, into the generator's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.utils import get_max_position_embeddings

from arpo_verl.cpu.generation.types import SamplingParams

_TAKEN = ("temperature", "top_p", "top_k", "ignore_eos", "seed", "stop_token_ids")
_LENGTH = ("max_tokens", "max_new_tokens")
# veRL sends these with every request; this engine always returns log-probabilities and penalises nothing.
_GIVEN = {"logprobs": (True, False, None, 0), "repetition_penalty": (1.0, None)}


def sampling_params(
    params: Mapping[str, Any], config: RolloutConfig, model_config: HFModelConfig, prompt_length: int
) -> SamplingParams:
    """Build the generator's parameters for one request.

    A request without a length gets what is left of the recipe's lengths, as with veRL's vLLM server.

    Raises:
        ValueError: this engine does not have a parameter, or the prompt leaves no room for a reply.
    """
    for name, value in params.items():
        if name in _GIVEN and value not in _GIVEN[name]:
            raise ValueError(
                f"{name} must be one of {_GIVEN[name]} for the rollout engine `transformers`, got {value!r}"
            )
        if name not in (*_TAKEN, *_LENGTH, *_GIVEN):
            known = ", ".join((*_TAKEN, *_LENGTH, *_GIVEN))
            raise ValueError(f"the rollout engine `transformers` has no sampling parameter {name!r}; it has {known}")
    room = (config.max_model_len or get_max_position_embeddings(model_config.hf_config)) - prompt_length
    if room < 1:
        raise ValueError(
            f"a prompt of {prompt_length} tokens fills the model's context; shorten it or raise max_model_len"
        )
    wanted = next((params[name] for name in _LENGTH if params.get(name) is not None), None)
    if wanted is None:
        wanted = min(config.response_length, config.prompt_length + config.response_length - prompt_length)
    taken = {name: params[name] for name in _TAKEN if params.get(name) is not None}
    taken["stop_token_ids"] = tuple(taken.get("stop_token_ids", ()))
    taken.setdefault("ignore_eos", config.ignore_eos)
    return SamplingParams(max_tokens=max(1, min(wanted, room)), **taken)
