"""`python -m arpo_verl.policy.seeing --out DIR`: train the policy that sees, or write the shipped one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from arpo_verl.errors import ArpoError
from arpo_verl.policy.seeing.shipped import check_out, write_shipped


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m arpo_verl.policy.seeing",
        description="Make a small Qwen2.5-VL that reads words on a screen of 448x336 and clicks them: a start for RL "
        "on the generated tasks. A training that was interrupted goes on.",
    )
    parser.add_argument("--out", type=Path, required=True, help="the model's folder")
    parser.add_argument("--shipped", action="store_true", help="write the model that comes with the package")
    parser.add_argument("--lessons", type=Path, help="captures and checkpoints (default: OUT-lessons)")
    parser.add_argument(
        "--threads", type=int, choices=range(1, 65), metavar="N", default=1, help="of torch (default: 1)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run; an `ArpoError` and what the disk refuses are told in one line, with exit status 2."""
    args = build_parser().parse_args(argv)
    # Nothing here asks a hub; so say at once if some file were missing, instead of after a network time-out.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        out = args.out.absolute()
        check_out(out)  # before hours of lessons
        if args.shipped:
            write_shipped(out)
        else:
            _train(out, args.lessons or out.with_name(f"{out.name}-lessons"), args.threads)
    except (ArpoError, OSError) as error:
        print(f"arpo_verl.policy.seeing: {error}", file=sys.stderr)
        return 2
    print(f"policy {args.out} is written")
    return 0


def _train(out: Path, lessons: Path, threads: int) -> None:
    import torch

    from arpo_verl.policy.seeing.training import LessonPlan, Schooling

    torch.set_num_threads(threads)
    schooling = Schooling(lessons, LessonPlan())
    schooling.learn()
    schooling.export(out)


if __name__ == "__main__":
    sys.exit(main())
