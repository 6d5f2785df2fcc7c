"""`python -m arpo_verl.policy --out DIR`: make the small warm-started policy, or say that it is there already."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from arpo_verl.errors import ArpoError
from arpo_verl.policy.prepare import PolicyConfig, PreparedPolicy, prepare_policy
from arpo_verl.rollout.config import CONTEXTS


def build_parser() -> argparse.ArgumentParser:
    defaults = PolicyConfig()
    parser = argparse.ArgumentParser(
        prog="python -m arpo_verl.policy",
        description="Make a small Qwen2.5-VL without a model hub, and have it imitate the scripted expert on real "
        "desktops until it solves a part of the tasks: a start for RL on a machine without a GPU. "
        "A finished policy of the same settings, tasks and scripts is used again.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        default=argparse.SUPPRESS,
        help="the policy's folder; demonstrations go beside it",
    )
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of the weights and the order of imitation")
    parser.add_argument("--tasks", default=defaults.tasks, help="task file, folder, 'embedded' or 'embedded_long'")
    parser.add_argument(
        "--target-success",
        type=float,
        default=defaults.target_success,
        help="stop imitation at this mean probability of the expert's replies",
    )
    parser.add_argument(
        "--floor", type=float, default=defaults.floor, help="and go on until each task's own probability is this"
    )
    parser.add_argument(
        "--epochs", type=int, help="imitate for so many at most, with a falling learning rate: for long demonstrations"
    )
    parser.add_argument(
        "--context",
        choices=CONTEXTS,
        default=defaults.context,
        help="imitate in the rows of a run with this gui_agent.context",
    )
    parser.add_argument("--max-screenshots", type=int, help="gui_agent.max_screenshots of that run")
    parser.add_argument("--kept-screenshots", type=int, help="gui_agent.kept_screenshots of that run")
    parser.add_argument(
        "--num-desktops", type=int, default=defaults.num_desktops, help="desktops that demonstrations are played on"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run; an `ArpoError` is told in one line, with exit status 2."""
    args = build_parser().parse_args(argv)
    # Nothing here asks a hub; so say at once if some file were missing, instead of after a network time-out.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # As in `arpo_verl.cpu`: threads that spin while they wait stand in each other's way on busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    began = time.monotonic()
    try:
        settings = PolicyConfig(
            seed=args.seed,
            tasks=args.tasks,
            target_success=args.target_success,
            floor=args.floor,
            epochs=args.epochs,
            context=args.context,
            max_screenshots=args.max_screenshots,
            kept_screenshots=args.kept_screenshots,
            num_desktops=args.num_desktops,
        )
        prepared = prepare_policy(args.out, settings)
    except ArpoError as error:
        print(f"arpo_verl.policy: {error}", file=sys.stderr)
        return 2
    print(summary(prepared, time.monotonic() - began))
    return 0


def summary(prepared: PreparedPolicy, seconds: float) -> str:
    """One line: what was made or found, and how good it is."""
    report = prepared.report
    shares = sorted(report["success_by_task"].values())
    what = "is up to date" if prepared.reused else f"made in {seconds:.0f} s"
    return (
        f"policy {prepared.directory} {what}: {report['num_parameters'] / 1e6:.1f} M parameters, "
        f"{report['epochs']} epochs, the expert's replies have probability {report['mean_success']:.2f} "
        f"(tasks: {shares[0]:.2f} to {shares[-1]:.2f})"
    )


if __name__ == "__main__":
    sys.exit(main())
