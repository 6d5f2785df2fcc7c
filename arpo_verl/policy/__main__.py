"""`python -m arpo_verl.policy NAME --out DIR`: write a policy that comes with the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from arpo_verl.errors import ArpoError
from arpo_verl.policy.shipped import SHIPPED, write_shipped


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m arpo_verl.policy",
        description="Write a small Qwen2.5-VL that comes with the package as a Hugging Face folder: a start for RL on "
        "a machine without a GPU.",
    )
    parser.add_argument(
        "name",
        choices=SHIPPED,
        help="embedded: knows the shipped tasks by heart, two in three of them at temperature 0.6; seeing: reads a "
        "screen of 448x336 and clicks words on it, for the generated tasks",
    )
    parser.add_argument("--out", type=Path, required=True, help="the model's folder")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run. Shows an `ArpoError` or an error of the disk in one line, with exit status 2."""
    args = build_parser().parse_args(argv)
    try:
        write_shipped(args.name, args.out.absolute())
    except (ArpoError, OSError) as error:
        print(f"arpo_verl.policy: {error}", file=sys.stderr)
        return 2
    print(f"policy {args.out} is written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
