"""Load what all sessions of a process share: a recipe's validated sections, the policy's files, and the job's pool.

veRL makes a loop object for each session, so it must be cheap. Importing this module imports neither torch nor veRL nor
Ray, each of which takes seconds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import build_config, one_of, require
from arpo_verl.reward import compute_score
from arpo_verl.tasks.selection import TaskSelection

if TYPE_CHECKING:
    from arpo_verl.agent.rollout.chat import ChatTokenizer
    from arpo_verl.desktops.pool.desktop_pool import DesktopPool

TOKENS, EQUAL = EPISODE_WEIGHTS = ("tokens", "equal")


def plain_section(name: str, section: object) -> dict[str, Any]:
    """Return the section as a dict with its interpolations resolved; plain values stay as they are.

    Raises:
        ConfigError: the section is not a mapping.
    """
    values = OmegaConf.to_container(section, resolve=True) if OmegaConf.is_config(section) else section
    if not isinstance(values, Mapping):
        raise ConfigError(f"the recipe's section `{name}` must map names to values, got {values!r}")
    return {str(key): value for key, value in values.items()}


def task_selection(data: Any) -> TaskSelection:
    """Return which tasks a recipe's section `data` selects.

    Raises:
        ConfigError: a value is wrong.
    """
    return build_config(TaskSelection, "data.tasks", plain_section("data.tasks", data.get("tasks") or {}))


def check_batch(data: Mapping[str, Any], rows: int, size: str) -> None:
    """Require rows for a whole batch. Without one an epoch has no step, and veRL divides by 0 after its validation.

    Args:
        data: the recipe's section `data`.
        size: its option that says how many rows a batch has.

    Raises:
        ConfigError: there are fewer.
    """
    needed, expected = data.get(size) or 1, f"at most {rows}, the rows of data.train_files"
    require(needed <= rows, f"data.{size}", expected, needed, "lower it, add tasks, or raise data.tasks.repeat")


def episode_weight_of(algorithm: Mapping[str, Any] | None) -> str:
    """Return the recipe's `algorithm.episode_weight`.

    `tokens`: an episode weighs as much as its tokens, as in veRL's `token-mean` and the paper. `equal`: each episode
    weighs the same, so that long ones, which fail more often, do not dominate the update.

    Raises:
        ConfigError: the value is neither.
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
    """Like `compute_score`, with the recipe's `reward_kwargs` bound; may be a coroutine function."""


@dataclass(frozen=True)
class PolicyFiles:
    """The files in `actor_rollout_ref.model` from which veRL's `HFModelConfig` makes tokenizer and processor."""

    path: str
    tokenizer_path: str | None = None
    """Folder or name of tokenizer and processor; None: `path`."""
    custom_chat_template: str | None = None
    """Used instead of their own template."""
    trust_remote_code: bool = False

    @classmethod
    def of_recipe(cls, config: DictConfig) -> PolicyFiles:
        """Read them from a composed recipe."""
        model = config.actor_rollout_ref.model
        return cls(
            path=model.path,
            tokenizer_path=model.get("tokenizer_path"),
            custom_chat_template=model.get("custom_chat_template"),
            trust_remote_code=bool(model.get("trust_remote_code", False)),
        )

    @property
    def processor(self) -> str:
        """Folder or name of tokenizer and processor."""
        return self.tokenizer_path or self.path


def load_settings(config: DictConfig) -> LoopSettings:
    """Read the recipe, once a process for the same values.

    Raises:
        ConfigError: a value is wrong.
    """
    return _load(_sections(config, "gui_agent", "environment", "reward"))


def connect_pool(config: DictConfig) -> DesktopPool:
    """Connect this process to the job's desktops; all sessions of a Ray job share one pool."""
    import ray

    return _connect(ray.get_runtime_context().get_job_id(), _sections(config, "environment"))


def _sections(config: DictConfig, *names: str) -> str:
    """Return the recipe's sections as JSON text, which can be the key of a cache."""
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
    from arpo_verl.desktops.pool.desktop_pool import DesktopPool

    return DesktopPool.connect(
        build_config(EnvironmentConfig, "environment", json.loads(sections_json).get("environment"))
    )


def _reward_function(reward: dict[str, Any]) -> Callable[..., Any]:
    """Load the recipe's `reward.custom_reward_function` with veRL's own loader; the default is ours."""
    from verl.trainer.ppo.reward import get_custom_reward_fn

    function = get_custom_reward_fn(OmegaConf.create({"reward": reward}))
    if function is None:
        return compute_score
    chosen = reward["custom_reward_function"]
    function.__name__ = f"{chosen['name']} of {chosen['path']}"  # for messages, since veRL wraps the function
    return function


def load_processor(folder: Path | str) -> Any:
    """Load the processor in a model's folder, as veRL's `HFModelConfig` does for the rollout workers."""
    from verl.utils.tokenizer import hf_processor

    return hf_processor(str(folder))


def chat_tokenizer(
    tokenizer: Any, processor: Any, model_type: str, mm_processor_kwargs: Mapping[str, Any] | None = None
) -> ChatTokenizer:
    """Make the agent loop's tokenizer of conversations.

    Args:
        model_type: `model_type` of the model's config, which decides how veRL joins turns.
        mm_processor_kwargs: the recipe's `data.mm_processor_kwargs`.
    """
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    from arpo_verl.agent.rollout.chat import ChatTokenizer

    kwargs = dict(mm_processor_kwargs or {})
    builder = create_continuous_token_builder(
        tokenizer, processor=processor, hf_model_type=model_type, mm_processor_kwargs=kwargs
    )
    return ChatTokenizer.from_processor(tokenizer, processor, builder, kwargs)
