"""Write a policy from the package: `python -m arpo_verl.tools.policy NAME --out DIR`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from arpo_verl.errors import ArpoError
from arpo_verl.tools.policy.shipped import SHIPPED, write_shipped


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m arpo_verl.tools.policy",
        description="Write a small Qwen2.5-VL from the package into a Hugging Face folder, to start RL on a machine "
        "without a GPU.",
    )
    parser.add_argument(
        "name",
        choices=SHIPPED,
        help="embedded: has learned the shipped tasks by heart and solves two in three at temperature 0.6; seeing: "
        "reads a screen of 448x336 and clicks words on it, for the generated tasks",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model into")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Show an `ArpoError` or an error of the disk in one line, with exit status 2."""
    args = build_parser().parse_args(argv)
    try:
        write_shipped(args.name, args.out.absolute())
    except (ArpoError, OSError) as error:
        print(f"arpo_verl.tools.policy: {error}", file=sys.stderr)
        return 2
    print(f"wrote the policy to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
