"""Define the rows of the tables: a recipe that is read by option names, and rules about it."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, ParamSpec, TypeVar

from omegaconf import DictConfig, OmegaConf

from arpo_verl.config import Problems, did_you_mean, require
from arpo_verl.footprint import Model
from arpo_verl.models.family import FULL, load_family
from arpo_verl.plugin.recipe.footprint import has_reference, num_training_rows, sequence_parallel_size, steps_of_epochs
from arpo_verl.replay.config import SAMPLERS
from arpo_verl.replay.rules import RowLimits
from arpo_verl.tasks.selection import FRONTIER

P = ParamSpec("P")
T = TypeVar("T")
_SHORT = ("actor", "model", "ref", "rollout")


def full_name(option: str) -> str:
    """Return an option's name as the command line takes it. Rules leave out `actor_rollout_ref.`."""
    return f"actor_rollout_ref.{option}" if option.partition(".")[0] in _SHORT else option


class Recipe:
    """A composed recipe, read by the names of its options and of the properties below.

    Args:
        config: the recipe.
        model: the policy's shape; None if it is not known.
    """

    def __init__(self, config: DictConfig, model: Model | None = None) -> None:
        self.config, self.model = config, model

    def __getitem__(self, name: str) -> Any:
        """Return None if the recipe does not have it. A name in capitals is an environment variable."""
        if name.isupper():
            return os.environ.get(name)
        if hasattr(type(self), name):
            return getattr(self, name)
        return OmegaConf.select(self.config, full_name(name), throw_on_missing=False)

    def fill(self, text: str) -> str:
        """Return the text with the value of each `{option}` filled in."""
        return re.sub(r"(?<!\$)\{([\w.]+)\}", lambda match: str(self[match[1]]), text)

    @property
    def mode(self) -> str:
        """The trainer's mode."""
        return str(self["trainer.v1.trainer_mode"])

    @property
    def gpus(self) -> int:
        """Number of GPUs that train."""
        return int(self["trainer.nnodes"] * self["trainer.n_gpus_per_node"])

    @property
    def gpus_per_engine(self) -> int:
        """Number of GPUs of one rollout engine."""
        sizes = (f"rollout.{kind}_parallel_size" for kind in ("tensor_model", "data", "pipeline_model"))
        return int(math.prod(self[size] or 1 for size in sizes))

    @property
    def actor_split(self) -> int:
        """Number of GPUs that the trainer splits a sequence over."""
        return sequence_parallel_size(self.config)

    @property
    def ref_split(self) -> int:
        """Number of GPUs that a sequence is split over for the reference model."""
        return sequence_parallel_size(self.config, "ref")

    @property
    def ranks(self) -> int:
        """Number of shares of a mini-batch. GPUs that split a sequence get one share together."""
        return max(1, self.gpus // self.actor_split)

    @property
    def rows_per_update(self) -> int:
        """Rows of an update, if each episode is one row."""
        return int(self["actor.ppo_mini_batch_size"] * self["rollout.n"])

    @property
    def rows_per_rank(self) -> int:
        """Rows of an update in one share."""
        return self.rows_per_update // self.ranks

    @property
    def tasks_of_updates(self) -> int:
        """Tasks of all updates of a step in mode `separate_async`."""
        return int(self["trainer.v1.separate_async.parameter_sync_step"] * self["actor.ppo_mini_batch_size"])

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that the recipe allows."""
        return int(self["data.max_prompt_length"] + self["data.max_response_length"])

    def row_limits(self, vocabulary: int) -> RowLimits:
        """Return the limits of a row that this run makes and trains on. A harness's first prompt may fill a row."""
        prompt, response = self["rollout.prompt_length"], self["rollout.response_length"]
        most = [prompt + response, self["rollout.max_model_len"]]
        if self["actor.use_dynamic_bsz"]:  # veRL asserts that a row fits what the GPUs of a sequence take at once
            splits = {"actor.ppo": self.actor_split, "rollout.log_prob": self.actor_split}
            splits |= {"ref.log_prob": self.ref_split} if self.has_reference else {}
            most += [(self[f"{name}_max_token_len_per_gpu"] or 0) * split for name, split in splits.items()]
        total = min(filter(None, most))
        has_harness = self["gui_agent.harness"] is not None
        return RowLimits(total if has_harness else prompt, response, total, vocabulary)

    @cached_property
    def tasks(self) -> int | None:
        """Rows of the training data; None if it cannot be read."""
        return num_training_rows(self.config)

    @cached_property
    def steps(self) -> int | None:
        """Steps in all epochs; None if the training data cannot be read."""
        return steps_of_epochs(self.config)

    @property
    def has_reference(self) -> bool:
        """Whether there is a reference model beside the policy."""
        return has_reference(self.config)

    @property
    def has_critic(self) -> bool:
        """Whether the run has a critic, as veRL's `need_critic` decides."""
        enable = self["critic.enable"]
        return bool(self["algorithm.adv_estimator"] == "gae" if enable is None else enable)

    @property
    def has_several_rows(self) -> bool:
        """Whether an episode has, or may have, several rows."""
        if self["gui_agent.harness"] is not None:
            return True
        usual = load_family(str(self["gui_agent.model_family"] or "ui_tars_15")).context
        return bool((self["gui_agent.context"] or usual) != FULL)

    @property
    def is_frontier(self) -> bool:
        """Whether tasks are drawn by how often the policy solves them."""
        return bool(self["data.tasks.sampling"] == FRONTIER)

    @property
    def has_our_sampler(self) -> bool:
        """Whether the sampler's name is one of ours. A user's own sampler may build on it."""
        return self["trainer.v1.sampler.custom_sampler.name"] in SAMPLERS

    @property
    def fitting_splits(self) -> list[int]:
        """Sizes that divide the policy's heads and the GPUs."""
        sizes = self.model.sequence_parallel_sizes if self.model else []
        return [size for size in sizes if self.gpus % size == 0]

    @property
    def splits(self) -> str:
        """The same sizes as text, for a message."""
        return ", ".join(map(str, self.fitting_splits))

    @property
    def heads(self) -> str:
        """The number of the policy's heads, for a message."""
        model = self.model
        return f"{model.num_heads} attention heads and {model.num_kv_heads} key-value heads" if model else ""


yes, no = bool, operator.not_


def is_none(value: Any) -> bool:
    """Return whether no value was given."""
    return value is None


class Rule(NamedTuple):
    """A condition that is wrong, and its message. `{option}` in a text stands for the option's value."""

    option: str
    broken: Callable[[Recipe], Any] | Mapping[str, Any]
    """When it is wrong: a function of the recipe, or values (or functions of a value) by option that must all match."""
    expected: str
    """What the option must be, and after a colon the reason."""
    remedy: str = ""
    source: str = ""
    """The line of veRL that the rule depends on: its file, ` | ` and a part of the line."""
    known: Collection[str] = ()
    """Values that are suggested if the given one looks like a typo of one."""

    def check(self, recipe: Recipe) -> None:
        """Refuse a recipe that breaks the rule.

        Raises:
            ConfigError: names the option, the reason, the value and what to set.
        """
        if callable(self.broken):
            is_broken = bool(self.broken(recipe))
        else:
            is_broken = all(_matches(recipe[name], wanted) for name, wanted in self.broken.items())
        if is_broken:
            value = recipe[self.option]
            remedy = recipe.fill(self.remedy) or did_you_mean(value, self.known).removeprefix("; ")
            require(False, full_name(self.option), recipe.fill(self.expected), value, remedy)


def _matches(value: Any, wanted: Any) -> bool:
    return bool(wanted(value)) if callable(wanted) else bool(value == wanted)


def one_of(option: str, known: Collection[str], source: str = "", when: Mapping[str, Any] | None = None) -> Rule:
    """Make the rule that an option has one of these values.

    Args:
        when: further conditions, as in a rule.
    """
    broken = {**(when or {}), option: lambda value: value is not None and value not in known}
    return Rule(option, broken, f"one of {', '.join(known)}", source=source, known=known)


class Checks(Problems):
    """Makes one check after the other. If one crashes on an unusual recipe, the others still report what they find."""

    def __init__(self) -> None:
        super().__init__()
        self._failure: Exception | None = None

    def run(self, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return what the check returns; None if it found a problem or crashed."""
        try:
            with self.gather():
                return check(*args, **kwargs)
        except Exception as error:
            self._failure = self._failure or error
        return None

    def raise_all(self) -> None:
        """Raise the problems that were found; if there are none, raise what crashed."""
        super().raise_all()
        if self._failure is not None:
            raise self._failure


def check_rules(rules: Iterable[Rule], recipe: Recipe) -> None:
    """Check a recipe against all of these rules.

    Raises:
        ConfigError: lists each broken rule.
    """
    checks = Checks()
    for rule in rules:
        checks.run(rule.check, recipe)
    checks.raise_all()
