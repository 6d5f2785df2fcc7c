"""The command line `arpo-verl`."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence

from arpo_verl.cli import (
    convert,
    doctor,
    evaluate,
    fetch_vm,
    filter_tasks,
    install_osworld,
    recipes,
    replay,
    report,
    summary,
    train,
    try_task,
    view,
    vm,
)
from arpo_verl.errors import ArpoError
from arpo_verl.versions import __version__

_FULL = (errno.ENOSPC, errno.EDQUOT)


def build_parser() -> argparse.ArgumentParser:
    """The parser with one subparser a command; each command's module adds its own."""
    parser = argparse.ArgumentParser(
        prog="arpo-verl",
        description="ARPO training with stock veRL, and tools around it.",
    )
    parser.add_argument("--version", action="version", version=f"arpo-verl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (
        doctor,
        install_osworld,
        fetch_vm,
        vm,
        recipes,
        convert,
        train,
        summary,
        report,
        view,
        try_task,
        replay,
        evaluate,
        filter_tasks,
    ):
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an `ArpoError`, and what a file system refuses, is told in one line, with exit status 2."""
    args = build_parser().parse_args(argv)
    try:
        status: int = args.run(args)
        return status
    except ArpoError as error:
        print(f"arpo-verl: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None and error.errno not in _FULL:
            raise
        print(f"arpo-verl: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
