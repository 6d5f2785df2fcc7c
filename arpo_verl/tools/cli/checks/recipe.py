"""How much memory and disk a recipe needs, and whether it could start here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arpo_verl.engines.footprint import Footprint
from arpo_verl.errors import MissingDependencyError
from arpo_verl.lib.config import Problems
from arpo_verl.tools.cli.checks import Finding
from arpo_verl.tools.cli.checks.packages import check_recipe_packages
from arpo_verl.tools.cli.composing import compose_named
from arpo_verl.tools.cli.recipes import find_recipe
from arpo_verl.versions import explain_missing, require_recipe_reader

if TYPE_CHECKING:
    from omegaconf import DictConfig


def check_recipe_fits(
    name: str, overrides: Sequence[str], node_gb: float | None = None, gpu_gb: float | None = None
) -> list[Finding]:
    """Print what the recipe needs; return findings on what does not fit, and on what a start would refuse.

    Args:
        name: a shipped recipe, or a YAML file.
        overrides: options as on the trainer's command line.
        node_gb, gpu_gb: memory of a node that trains, and of one of its GPUs, in GB; None: as here. With either, the
            check is for other nodes, so a package that is missing here is only a note.

    Raises:
        ConfigError: there is no such recipe, or it does not compose.
    """
    require_recipe_reader()
    from arpo_verl.plugin.recipe.footprint import describe_schedule, estimate_recipe
    from arpo_verl.plugin.recipe.values import is_given

    config = compose_named(name, overrides)
    findings = []
    try:
        findings += check_recipe_packages(config, required=node_gb is None and gpu_gb is None)
    except Exception:  # such as a null in an unusual place
        findings.append(Finding("packages", False, "cannot be checked", "correct first what is refused below"))
    try:
        report, schedule = (
            estimate_recipe(config, memory_bytes=_bytes(node_gb), gpu_bytes=_bytes(gpu_gb)),
            describe_schedule(config),
        )
    except MissingDependencyError as error:  # a model's official prompt
        what, _, remedy = str(error).partition("; ")
        findings.append(Finding("figures", False, what, remedy))
    except Exception:  # a wrong value, such as a null or a 0 in an unusual place
        findings.append(Finding("figures", False, "cannot be estimated", "correct first what is refused below"))
    else:
        model = "actor_rollout_ref.model.path"
        findings += _figures(report, config.actor_rollout_ref.model.path) if is_given(config, model) else []
        print(schedule)
    return [*findings, *_doubtful_names(config), *_refusals(config, find_recipe(name), overrides)]


def _refusals(config: DictConfig, recipe: Path, overrides: Sequence[str]) -> list[Finding]:
    """Return what the trainer would refuse."""
    try:
        from arpo_verl.plugin.recipe.checks import check_recipe
    except ModuleNotFoundError as error:  # the figures above need less
        what, _, remedy = (explain_missing(error.name) or str(error)).partition("; ")
        return [Finding("checks before a start", False, f"left out: {what}", remedy)]
    problems = Problems()
    try:
        with problems.gather():
            check_recipe(config, recipe, overrides)
    except Exception as error:
        return [Finding("recipe", False, f"cannot be checked ({error!r})", "look for a 0, a null or a typo")]
    told = [str(error).partition("; ") for error in problems.errors]
    return [Finding("refused at its start", False, what, remedy) for what, _, remedy in told]


def _doubtful_names(config: DictConfig) -> list[Finding]:
    from arpo_verl.plugin.recipe.values import doubtful_names

    told = [line.partition("; ") for line in doubtful_names(config)]
    return [Finding("option", False, what, hint, required=False) for what, _, hint in told]


def _figures(report: Footprint | None, model: str) -> list[Finding]:
    """Print the figures; return findings on what does not fit."""
    findings = []
    if report is None:
        remedy = "give a folder with its config.json and weights by actor_rollout_ref.model.path, or download it first"
        findings.append(Finding("figures", False, f"the size of {model} is unknown here", remedy))
    else:
        print("\n".join(report.lines))
        findings += [Finding("does not fit", False, what, remedy) for what, remedy in report.problems]
    return findings


def _bytes(gb: float | None) -> int | None:
    return None if gb is None else int(gb * 10**9)
