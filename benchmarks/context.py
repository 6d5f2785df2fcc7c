"""Several rows an episode: what they cost in tokens, what they lose on short tasks, and what they bring on long ones.

    python benchmarks/context.py [--smoke] [--json PATH] [--work DIR] [--parts PART ...] [--seeds N]

`tokens` counts an episode of 50 steps of 1920x1080 in each context; see `context_tokens.py`. `suite` trains on the
embedded suite with a window of two screenshots, and with the whole history, at equal environment steps. Three tasks of
five need more than two screenshots there, so the window moves. Each run begins with a policy that has imitated in its
own context, to the same probability of the expert's replies. `long` trains on three of the long tasks, 17 steps each,
with the same window; the whole history is played too, by that policy, untrained. Runs are those of
`learning.py` in all else; success is that of the last checkpoint on all tasks at temperature 1, and of the long ones
with `top_p` 0.9, in training too, the default of OSWorld's agent for UI-TARS: of 400 tokens drawn from the whole
vocabulary of a policy of 1.3 million parameters some are noise, and a reply that cannot be read ends an episode.

The study goes on where it was stopped when it is given its `--work` again; a finished run is read, not repeated.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import context_tokens
from figures import write
from learning import difference, interval
from learning_runs import Curve, PartialStudy, last_checkpoint, play_all, train
from replay_memory import record_episodes
from trainer_run import copy_tasks, make_policy, read_steps, trainer_arguments

from arpo_verl.tasks.loader import EMBEDDED_DIR, EMBEDDED_LONG, SUITES

FULL, WINDOW = "full", "window"
PARTS = ("tokens", "suite", "long")
TASKS = tuple(sorted(path.stem for path in EMBEDDED_DIR.glob("*.json")))
SMOKE_TASKS = ("dialog-follow-right", "scale-volume-one", "scale-volume-three", "password-log-in")
LONG_TASKS = ("form-guests-four", "form-choose-eight", "text-copy-three")
"""Of 17 steps each. Not all twelve: imitating them takes an hour on two cores."""
LONG_STEPS = 24
"""Of an episode: seven more than the expert needs."""
LONG_TOP_P = 0.9
SCREENSHOTS = 2
"""Of the window."""
POLICY = {FULL: (), WINDOW: ("--context", WINDOW, "--max-screenshots", str(SCREENSHOTS))}
AGENT = {
    FULL: ("gui_agent.context=full", "gui_agent.max_screenshots=null"),
    WINDOW: ("gui_agent.context=window", f"gui_agent.max_screenshots={SCREENSHOTS}"),
}


@dataclass(frozen=True)
class ContextStudy(PartialStudy):
    """Runs that differ in what the policy sees of its history."""

    max_steps: int

    def overrides(self, method: str, seed: int) -> list[str]:
        return [
            *super().overrides(method, seed),
            "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
            f"gui_agent.max_steps={self.max_steps}",
            *AGENT[method],
        ]


def main() -> None:
    arguments = _arguments()
    work = (arguments.work or Path(tempfile.mkdtemp(prefix="context-"))).absolute()
    figures: dict[str, Any] = {}
    if "tokens" in arguments.parts:
        figures |= context_tokens.figures(work / "processor", 12 if arguments.smoke else context_tokens.STEPS)
        (recorded,) = record_episodes(1, seed=0)
        figures["context_tokens"]["screenshot_bytes_per_step"] = statistics.fmean(map(len, recorded))
        write(figures, arguments.json)  # as after each part: hours are not lost to the last one
    if "suite" in arguments.parts:
        figures |= compare_on_suite(work / "suite", arguments)
        write(figures, arguments.json)
    if "long" in arguments.parts:
        figures |= train_on_long_tasks(work / "long", arguments)
        write(figures, arguments.json)
    print(table(figures))


def _arguments() -> argparse.Namespace:
    parser = trainer_arguments(__doc__, "twelve steps in tokens, four tasks, one long task, one seed, few steps")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="by default all")
    parser.add_size("--seeds", 3, 1, "runs of each context")
    parser.add_size("--suite-steps", 800, 20, "environment steps of each run on the suite")
    parser.add_size("--long-steps", 3600, 30, "environment steps of each run on the long tasks")
    return parser.parse()


# --- The suite of today: window against full ------------------------------------------------------------------------


def compare_on_suite(work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Success of both contexts after as many environment steps; `window_minus_full_points`."""
    smoke = arguments.smoke
    task_ids = SMOKE_TASKS if smoke else TASKS
    tasks = copy_tasks(work / "tasks", task_ids)
    options = ["--tasks", str(tasks), *(["--target-success", "0.1"] if smoke else [])]
    studies = {
        method: ContextStudy(
            policy=make_policy(work / f"policy-{method}", *options, *POLICY[method]),
            tasks=tasks,
            environment_steps=arguments.suite_steps,
            group_size=4,
            groups_per_task=1,
            learning_rate=2e-4,
            save_every=1,
            groups=4 if smoke else 8,
            validation_rollouts=1 if smoke else 8,
            max_steps=8,
        )
        for method in (FULL, WINDOW)
    }
    measured = {method: _measure(study, work, method, arguments.seeds) for method, study in studies.items()}
    points = difference(measured[WINDOW]["success_by_seed"], measured[FULL]["success_by_seed"])
    return {
        "window_minus_full_points": points["mean"],
        "suite": {"screenshots": SCREENSHOTS, "window_minus_full_points": points, **measured},
    }


# --- Long tasks -----------------------------------------------------------------------------------------------------


def train_on_long_tasks(work: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Success under a window before and after training; `long_task_gain_points`. And that of `full`."""
    smoke = arguments.smoke
    tasks = copy_tasks(work / "tasks", LONG_TASKS[:1] if smoke else LONG_TASKS, SUITES[EMBEDDED_LONG])
    target, epochs = (0.02, 10) if smoke else (0.005, 50)
    options = ["--tasks", str(tasks), "--target-success", str(target), "--epochs", str(epochs), *POLICY[WINDOW]]
    study = ContextStudy(
        policy=make_policy(work / "policy", *options),
        tasks=tasks,
        environment_steps=arguments.long_steps,
        # As in `learning.py`: of two episodes that fail, a stored success replaces one.
        group_size=2,
        groups_per_task=4,
        learning_rate=2e-4,
        save_every=1,
        groups=4 * len(list(tasks.glob("*.json"))),
        validation_rollouts=1 if smoke else 16,
        max_steps=LONG_STEPS,
        top_p=LONG_TOP_P,
    )
    window = _measure(study, work, WINDOW, arguments.seeds)
    before = dict.fromkeys(window["success_by_seed"], window["base"])
    gain = difference(window["success_by_seed"], before)
    # Of the same policy and recipe, whose sequence holds 10 or 11 steps; the policy has imitated windows.
    full = play_all(work / "full-base", study.overrides(FULL, seed=1), None)
    return {
        "long_task_gain_points": gain["mean"],
        "long_tasks": {
            "tasks": list(window["base_by_task"]),
            "screenshots": SCREENSHOTS,
            "max_steps": LONG_STEPS,
            "gain_points": gain,
            "full_success": statistics.fmean(full.values()),
            WINDOW: window,
        },
    }


# --- Runs and figures -----------------------------------------------------------------------------------------------


def _measure(study: ContextStudy, work: Path, method: str, seeds: int) -> dict[str, Any]:
    """The warm start's success under a context, and that of a run of each seed."""
    base = play_all(work / f"{method}-base", study.overrides(method, seed=1), None)
    curves: list[Curve] = []
    judged: dict[int, dict[str, float]] = {}
    for seed in range(1, seeds + 1):
        curves.append(train(study, work, method, seed, f"{method}, seed {seed} of {seeds}"))
        run_dir = work / f"{method}-{seed}"
        overrides = study.overrides(method, seed=1)
        judged[seed] = play_all(work / f"{method}-{seed}-validated", overrides, last_checkpoint(run_dir))
    success = {seed: statistics.fmean(by_task.values()) for seed, by_task in judged.items()}
    return {
        "base": statistics.fmean(base.values()),
        "base_by_task": base,
        "success": interval(list(success.values())),
        "success_by_seed": success,
        "success_by_task": {
            task_id: statistics.fmean(by_task[task_id] for by_task in judged.values()) for task_id in base
        },
        "rows_per_episode": _mean_metric(work, method, seeds, "batch/rows_per_episode"),
        "updates_per_step": _mean_metric(work, method, seeds, "batch/updates"),
        "replays": sum(curve.replays for curve in curves),
        "training_success_by_step": {c.seed: [p.success for p in c.ended(study.environment_steps)] for c in curves},
        "environment_steps": {c.seed: c.points[-1].environment_steps for c in curves},
        "wall_s": {c.seed: c.wall_s for c in curves},
    }


def _mean_metric(work: Path, method: str, seeds: int, name: str) -> float | None:
    """Over the training steps that ended; None where none did."""
    steps = [step for seed in range(1, seeds + 1) for step in read_steps(work / f"{method}-{seed}").values()]
    return statistics.fmean(step[name] for step in steps) if steps else None


def table(figures: Mapping[str, Any]) -> str:
    """The figures as Markdown tables."""
    lines: list[str] = []
    if "context_tokens" in figures:
        lines += _token_table(figures["context_tokens"]["contexts"])
        lines.append(f"longest sequence, window over full: {figures['longest_sequence_ratio']:.2f}\n")
    if "suite" in figures:
        suite = figures["suite"]
        lines += ["| context | before | after | by seed | rows an episode |", "|---|---|---|---|---|"]
        lines += [_row(method, suite[method]) for method in (FULL, WINDOW)]
        lines.append(f"window minus full: {figures['window_minus_full_points']:+.1f} points\n")
    if "long_tasks" in figures:
        long = figures["long_tasks"]
        lines += ["| long tasks | before | after | by seed | rows an episode |", "|---|---|---|---|---|"]
        lines += [_row(WINDOW, long[WINDOW]), f"| full | {long['full_success']:.1%} | | | |"]
        lines.append(f"gain: {figures['long_task_gain_points']:+.1f} points")
    return "\n".join(lines)


def _row(method: str, measured: Mapping[str, Any]) -> str:
    seeds = ", ".join(f"{value:.1%}" for value in measured["success_by_seed"].values())
    rows = "–" if measured["rows_per_episode"] is None else f"{measured['rows_per_episode']:.1f}"
    return f"| {method} | {measured['base']:.1%} | {measured['success']['mean']:.1%} | {seeds} | {rows} |"


def _token_table(contexts: Mapping[str, Mapping[str, float]]) -> Sequence[str]:
    names = ("rows", "longest_sequence", "tokens_in_loss", "tokens_trained", "tokens_prefilled", "images_in_rows")
    head = [f"| context | {' | '.join(name.replace('_', ' ') for name in names)} | GB of pixel values |"]
    rows = [
        f"| {context} | {' | '.join(f'{of_one[name]:,}' for name in names)} "
        f"| {of_one['pixel_bytes_per_step'] * of_one['steps'] / 1e9:.1f} |"
        for context, of_one in contexts.items()
    ]
    return [*head, f"|{'---|' * (len(names) + 2)}", *rows]


if __name__ == "__main__":
    main()
