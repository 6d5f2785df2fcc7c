"""The command line `arpo-verl`."""

from __future__ import annotations

import argparse
import importlib
import os
import select
import signal
import sys
from collections.abc import Sequence

from arpo_verl.errors import ArpoError
from arpo_verl.lib.files import FULL, explain_refusal
from arpo_verl.lib.untrusted import printable_lines
from arpo_verl.tools.cli.parser import CommandParser
from arpo_verl.versions import __version__, explain_missing

COMMANDS = {
    "doctor": "check this machine, a recipe or tasks, and say what to do",
    "install-osworld": "install OSWorld's client without changing other packages",
    "fetch-vm": "download the VM of OSWorld's Docker desktops (12 GB, resumable)",
    "fetch-tasks": "download OSWorld's task files",
    "tasks": "count tasks by domain and by what runs here; write training lists",
    "vm": "build images and templates for the provider qemu (experimental)",
    "recipes": "list the recipes, copy one to change, or print their folder",
    "convert": "make a recipe from a script or configuration of the ARPO reference or EasyR1",
    "train": "train a recipe; the terminal shows one line for each step",
    "summary": "print success before and after, replays, and where everything is",
    "report": "write one HTML file: success, replays, faults, times, episodes",
    "view": "watch a run in the browser, also while it trains, or export its pages",
    "try": "play one task by hand and see the evaluator's verdict",
    "replay": "inspect, export, merge and seed stores of past successes",
    "evaluate": "measure how often a policy solves tasks; compare two evaluations",
    "filter-tasks": "choose the tasks that a policy solves sometimes",
}
"""Each command with its line in the list. We import only the module of the typed command."""

_STDOUT = 1


def build_parser(typed: str | None = None) -> argparse.ArgumentParser:
    """Build the parser of all commands; only the typed one has its options, which its module adds."""
    parser = CommandParser(
        prog="arpo-verl",
        description="ARPO training with stock veRL, and tools around it.",
    )
    parser.add_argument("--version", action="version", version=f"arpo-verl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, line in COMMANDS.items():
        if name == typed:
            file = "try_task" if name == "try" else name.replace("-", "_")  # `try` is a keyword
            module = importlib.import_module(f"arpo_verl.tools.cli.{file}")
            module.add_parser(commands)
            if hasattr(module, "run"):  # otherwise each of its actions has its own
                commands.choices[name].set_defaults(run=module.run)
        else:
            commands.add_parser(name, help=line)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Return 2 after printing one line about an `ArpoError`, a missing package or an error of the file
    system, 130 after Ctrl-C, and 141 if the reader of the output, such as `head`, is gone."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words:
        build_parser().print_help(sys.stderr)
        return 2
    args = build_parser(next((word for word in words if not word.startswith("-")), None)).parse_args(words)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt as error:
        print("\narpo-verl:", "; ".join(["interrupted", *error.args]), file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        if not _lost_reader():
            raise
        return 128 + signal.SIGPIPE
    except ArpoError as error:
        return _refuse(str(error))
    except ModuleNotFoundError as error:
        if (explained := explain_missing(error.name)) is None:
            raise
        return _refuse(explained)
    except OSError as error:
        if error.filename is None and error.errno not in FULL:
            raise
        return _refuse(explain_refusal(error))


def _refuse(reason: str) -> int:
    """Print the reason, which may quote an untrusted file."""
    print(f"arpo-verl: {printable_lines(reason)}", file=sys.stderr)
    return 2


def _lost_reader() -> bool:
    """Return whether nobody reads standard output any more; if so, drop Python's buffer, which would raise."""
    poll = select.poll()
    poll.register(_STDOUT, 0)
    if not poll.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    return True


if __name__ == "__main__":
    sys.exit(main())
