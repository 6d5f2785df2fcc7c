"""Define the recipe's section `replay`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from arpo_verl.lib.config import FieldRule, check_fields, number, one_of, require, text, truth, whole

STANDARD_DEVIATIONS = ("population", "sample")
SAMPLERS = {"ReplaySampler": ("sync",), "ReplaySamplerAsync": ("colocate_async", "separate_async")}
METHODS = {
    "arpo": "arpo_verl.replay.methods.arpo:Arpo",
    "fresh": "arpo_verl.replay.methods.fresh:Fresh",
    "rlep": "arpo_verl.replay.methods.rlep:Rlep",
    "spear": "arpo_verl.replay.methods.spear:Spear",
    "exgrpo": "arpo_verl.replay.methods.exgrpo:ExGrpo",
}
"""Where each method is."""
FALLBACK, REFUSE, EMPTY = ON_BAD_STORE = ("fallback", "refuse", "empty")

_TRAIN_WITHOUT = "set replay.enable=false to train without replay"


def _share(remedy: str = "") -> FieldRule:
    return number(lambda x: 0 < x <= 1, "in (0, 1]", remedy)


@dataclass(frozen=True)
class ReplayConfig:
    """Sets when a past success enters a group, how many are kept, and how a group's advantages are normalised.

    Scores are the evaluator's r_t, from 0 to 1. The format reward never counts for a threshold.
    Sources: ARPO, arXiv 2505.16282, and its public code, called the reference below.
    """

    enable: Annotated[bool, truth()] = True
    """Whether to replay. False trains with exactly stock GRPO: nothing is stored or injected, `std` has no effect."""

    method: Annotated[str, text("the name of a method or an import path")] = "arpo"
    """Which groups get which successes, where, and with which weight: `arpo`, `fresh`, `rlep`, `spear`, `exgrpo`, or
    the import path of a class of your own, `my_module:MyMethod`. See docs/replay.md."""

    method_options: Mapping[str, Any] = field(default_factory=dict)
    """The method's own options, such as `+replay.method_options.tau=50` with `fresh`."""

    capacity_per_task: Annotated[int, whole(1, "positive", _TRAIN_WITHOUT)] = 8
    """Successes kept for each task, in the trainer's memory; the oldest is dropped first. 128 tasks with 8 successes of
    15 screenshots at 1080p take 2.8 GiB. The buffer of the paper and the reference holds 8."""

    seed_from: Annotated[str | None, text("a folder or null")] = None
    """Folder of a store to start with, made by `arpo-verl replay seed` or by another run's checkpoint; null: start
    empty. A resumed run uses its own checkpoint's store instead."""

    on_bad_store: Annotated[str, one_of(ON_BAD_STORE)] = FALLBACK
    """What a resumed run does if its checkpoint's store is damaged, or made with another tokenizer, processor or
    prompt. `fallback`: start with the intact part of the newest readable store, this one or an earlier checkpoint's,
    else with the seeds, else empty, and log which. So one bad screenshot does not stop a run. `refuse`: end before
    training. `empty`: start empty, for a changed prompt that should forget."""

    std_threshold: Annotated[float, _share()] = 0.05
    """A group gets a replay if the population standard deviation of its scores is below this, and their mean below
    `mean_threshold`: without one it teaches nothing. The value is the reference's."""

    mean_threshold: Annotated[float, _share()] = 0.2
    """Mean score below which a group counts as failed, not as solved. The value is the reference's."""

    prefetch: Annotated[int, whole(0, "a whole number from 0")] = 4
    """Most replays that may be rebuilt while other groups still generate. They wait in the trainer's memory, with their
    screenshots. 0 rebuilds all when the batch is complete. It does not change what is replayed."""

    success_threshold: Annotated[float, _share()] = 0.5
    """Lowest score of a success worth storing. Most OSWorld evaluators give 0 or 1, a few give fractions. The
    reference's 0.1 would store what its own trigger (mean below 0.2) calls a failure."""

    std: Annotated[str, one_of(STANDARD_DEVIATIONS, " or ".join(STANDARD_DEVIATIONS))] = "population"
    """Sigma in the advantage (r - mean) / sigma. `population`: as in the paper's worked example, (1, 0 x 7) ->
    +2.65, -0.38. `sample`: as in stock GRPO and the reference (+2.47, -0.35)."""

    seed: Annotated[int, whole(0, "a whole number from 0")] = 0
    """Seed for choosing replays. With step and task it fixes the choice, in whatever order rollouts end."""

    def __post_init__(self) -> None:
        check_fields(self, "replay")
        require(
            self.success_threshold >= self.mean_threshold,
            "replay.success_threshold",
            f"at least replay.mean_threshold ({self.mean_threshold})",
            self.success_threshold,
            "otherwise a failure in one group could be replayed as a success in the next",
        )


def check_sampler(name: str, trainer_mode: str) -> None:
    """Refuse one of our samplers in a trainer mode that it is not made for.

    Raises:
        ConfigError: names the right sampler.
    """
    require(
        trainer_mode in SAMPLERS.get(name, (trainer_mode,)),
        "trainer.v1.sampler.custom_sampler.name",
        f"{next((other for other, modes in SAMPLERS.items() if trainer_mode in modes), 'your own')} with "
        f"trainer.v1.trainer_mode={trainer_mode}",
        name,
    )


def check_filter(filter_groups: Mapping[str, Any]) -> None:
    """Refuse a filter of groups that lacks something.

    Args:
        filter_groups: the recipe's `algorithm.filter_groups`.

    Raises:
        ConfigError: the metric or the number of batches is missing.
    """
    if not filter_groups.get("enable"):
        return
    metric, batches = filter_groups.get("metric"), filter_groups.get("max_inflight_gen_batches", 1)
    require(bool(metric), "algorithm.filter_groups.metric", "the name of a reward, such as `reward`", metric)
    name = "algorithm.filter_groups.max_inflight_gen_batches"
    require(type(batches) is int and batches > 0, name, "a whole number from 1", batches)
