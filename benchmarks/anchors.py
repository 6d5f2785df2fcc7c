"""How well other rollouts that stood before the same screen foretell a rollout's reward, on recorded episodes.

    python benchmarks/anchors.py FOLDER [FOLDER ...] [--json PATH]

Each folder has a policy's episodes, several of each task, as `arpo-verl evaluate --runs 8` records them. For each
tolerance of `algorithm.step_credit`: the share of turns that there is somebody to compare with, and the mean squared
error of two baselines at such turns, but for the first, whose screen all share: the other rollouts' mean, and that of
those that stood before the same screen. Gamma is 1. Groups of equal rewards are left out: they teach nothing.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from figures import Arguments, report

from arpo_verl.errors import ReplayError
from arpo_verl.plugin.step_credit import ANCHOR_STATES, EpisodeTurns, StepCreditConfig, anchor_credit
from arpo_verl.records.recorded import read_episodes
from arpo_verl.rollout.screen import stack, thumbnail

TOLERANCES = (0, 4, 8, 16)


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="with recorded episodes")
    arguments = parser.parse()
    policies = []
    for folder in arguments.folders:
        groups = read_groups(folder)
        mixed = [group for group in groups if len({episode.reward for episode in group}) > 1]
        rows = [figures_of(mixed, tolerance) for tolerance in TOLERANCES] if mixed else []
        policies.append({"groups": len(groups), "groups_of_unequal_rewards": len(mixed), "by_tolerance": rows})
    report({"policies": policies}, arguments.json)


def read_groups(folder: Path) -> list[list[EpisodeTurns]]:
    """The rollouts of each prompt; those without their screenshots are left out."""
    groups: dict[str, list[EpisodeTurns]] = defaultdict(list)
    for episode in read_episodes(folder):
        group = Path(episode.source).name.rsplit("_", 1)[0]
        try:
            screens = stack([thumbnail(image) for image in episode.images()])
        except ReplayError:
            continue
        groups[group].append(EpisodeTurns(group, episode.reward, screens))
    return [group for group in groups.values() if len(group) > 1]


def figures_of(groups: list[list[EpisodeTurns]], tolerance: int) -> dict[str, float]:
    """Over all turns of the groups."""
    config = StepCreditConfig(ANCHOR_STATES, discount=1.0, tolerance=tolerance)
    compared, of_group, of_anchor = [], [], []
    for group in groups:
        total = sum(episode.reward for episode in group)
        for episode, credit in zip(group, anchor_credit(group, config), strict=True):
            compared += credit.compared_T.tolist()
            error = episode.reward - (total - episode.reward) / (len(group) - 1)
            for advantage, count in list(zip(credit.advantages_T, credit.compared_T, strict=True))[1:]:
                if count:
                    of_group.append(error**2)
                    of_anchor.append(float(advantage) ** 2)
    return {
        "tolerance": tolerance,
        "turns": len(compared),
        "turns_compared": fmean(count > 0 for count in compared),
        "rollouts_compared_with": fmean(count for count in compared if count),
        "later_turns_compared": len(of_anchor),
        "squared_error_of_group_mean": fmean(of_group),
        "squared_error_of_anchor_mean": fmean(of_anchor),
    }


if __name__ == "__main__":
    main()
