"""A recipe's sections, validated, the policy's files, and the job's pool: what all sessions of a process share.

veRL makes a loop object a session, so nothing heavy may be made with it. Importing this module imports neither torch
nor veRL nor Ray, which take seconds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from arpo_verl.config import build_config, one_of, require
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.reward import compute_score
from arpo_verl.rollout.config import GuiAgentConfig

if TYPE_CHECKING:
    from arpo_verl.pool.desktop_pool import DesktopPool
    from arpo_verl.rollout.chat import ChatTokenizer

TOKENS, EQUAL = EPISODE_WEIGHTS = ("tokens", "equal")


def plain_section(name: str, section: object) -> dict[str, Any]:
    """The section with its interpolations resolved; plain values stay as they are.

    Raises:
        ConfigError: it is not a mapping.
    """
    values = OmegaConf.to_container(section, resolve=True) if OmegaConf.is_config(section) else section
    if not isinstance(values, Mapping):
        raise ConfigError(f"the recipe's section `{name}` must map names to values, got {values!r}")
    return {str(key): value for key, value in values.items()}


def episode_weight_of(algorithm: Mapping[str, Any] | None) -> str:
    """The recipe's `algorithm.episode_weight`.

    `tokens`: an episode weighs as much as its tokens, veRL's own `token-mean` and the paper's. `equal`: each episode
    the same; long ones, which fail more often, do not dominate the update.

    Raises:
        ConfigError: it is neither.
    """
    weight = TOKENS if algorithm is None else algorithm.get("episode_weight", TOKENS)
    rule = one_of(EPISODE_WEIGHTS)
    require(rule.holds(weight), "algorithm.episode_weight", rule.expected, weight, rule.remedy_for(weight))
    return str(weight)


@dataclass(frozen=True)
class LoopSettings:
    """The recipe's sections that the agent loop reads, validated."""

    agent: GuiAgentConfig
    environment: EnvironmentConfig
    reward_function: Callable[..., Any]
    """As `compute_score`, with the recipe's `reward_kwargs` bound; may be a coroutine function."""


@dataclass(frozen=True)
class PolicyFiles:
    """Of the recipe's `actor_rollout_ref.model`, what veRL's `HFModelConfig` makes tokenizer and processor of."""

    path: str
    tokenizer_path: str | None = None
    """Folder or name of tokenizer and processor; None: `path`."""
    custom_chat_template: str | None = None
    """In the place of the template that they bring."""
    trust_remote_code: bool = False

    @classmethod
    def of_recipe(cls, config: DictConfig) -> PolicyFiles:
        """Of a composed recipe."""
        model = config.actor_rollout_ref.model
        return cls(
            path=model.path,
            tokenizer_path=model.get("tokenizer_path"),
            custom_chat_template=model.get("custom_chat_template"),
            trust_remote_code=bool(model.get("trust_remote_code", False)),
        )

    @property
    def processor(self) -> str:
        """Where tokenizer and processor lie."""
        return self.tokenizer_path or self.path


def load_settings(config: DictConfig) -> LoopSettings:
    """Read the recipe; once a process for the same values.

    Raises:
        ConfigError: a value is wrong.
    """
    return _load(_sections(config, "gui_agent", "environment", "reward"))


def connect_pool(config: DictConfig) -> DesktopPool:
    """This process's handle on the job's desktops; one for all sessions of a Ray job."""
    import ray

    return _connect(ray.get_runtime_context().get_job_id(), _sections(config, "environment"))


def _sections(config: DictConfig, *names: str) -> str:
    """The recipe's sections as JSON: plain values that a cache can be keyed by."""
    sections = {name: plain_section(name, config[name]) for name in names if name in config}
    return json.dumps(sections, sort_keys=True, default=str)


@functools.lru_cache(maxsize=8)
def _load(sections_json: str) -> LoopSettings:
    sections = json.loads(sections_json)
    return LoopSettings(
        agent=build_config(GuiAgentConfig, "gui_agent", sections.get("gui_agent")),
        environment=build_config(EnvironmentConfig, "environment", sections.get("environment")),
        reward_function=_reward_function(sections.get("reward") or {}),
    )


@functools.lru_cache(maxsize=8)
def _connect(job_id: str, sections_json: str) -> DesktopPool:
    from arpo_verl.pool.desktop_pool import DesktopPool

    return DesktopPool.connect(
        build_config(EnvironmentConfig, "environment", json.loads(sections_json).get("environment"))
    )


def _reward_function(reward: dict[str, Any]) -> Callable[..., Any]:
    """The recipe's `reward.custom_reward_function`, loaded by veRL's own loader; by default ours."""
    from verl.trainer.ppo.reward import get_custom_reward_fn

    function = get_custom_reward_fn(OmegaConf.create({"reward": reward}))
    if function is None:
        return compute_score
    chosen = reward["custom_reward_function"]
    function.__name__ = f"{chosen['name']} of {chosen['path']}"  # veRL wraps it: for messages
    return function


def load_processor(folder: Path | str) -> Any:
    """The processor in a model's folder, as veRL's `HFModelConfig` loads it for the rollout workers."""
    from verl.utils.tokenizer import hf_processor

    return hf_processor(str(folder))


def chat_tokenizer(
    tokenizer: Any, processor: Any, model_type: str, mm_processor_kwargs: Mapping[str, Any] | None = None
) -> ChatTokenizer:
    """What the agent loop tokenizes a conversation with.

    Args:
        model_type: `model_type` of the model's config: it decides how veRL joins turns.
        mm_processor_kwargs: the recipe's `data.mm_processor_kwargs`.
    """
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    from arpo_verl.rollout.chat import ChatTokenizer

    kwargs = dict(mm_processor_kwargs or {})
    builder = create_continuous_token_builder(
        tokenizer, processor=processor, hf_model_type=model_type, mm_processor_kwargs=kwargs
    )
    return ChatTokenizer.from_processor(tokenizer, processor, builder, kwargs)
