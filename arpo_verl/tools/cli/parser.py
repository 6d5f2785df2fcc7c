"""This parser reports a mistake in one sentence, and suggests the option or name that the user may have meant."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from arpo_verl.lib.config import did_you_mean

# argparse's words -> plain ones.
_PLAIN = {
    r"^argument (\S+): ": r"\1: ",
    r"^the following arguments are required: (.*)$": r"\1 is missing",
    r"^(\S+): invalid int value: (.*)$": r"\1 must be a whole number, got \2",
    r"^(\S+): invalid float value: (.*)$": r"\1 must be a number, got \2",
    r"^(\S+): expected (?:one|at least one) argument$": r"\1 needs a value",
    r"^(\S+): not allowed with argument (\S+)$": r"\1 and \2 exclude each other",
    r"^(\S+): expected (\d) arguments$": r"\1 needs \2 values",
}


class CommandParser(argparse.ArgumentParser):
    """This is argparse's parser, without lines of usage, and with "did you mean". Commands use this class too.

    It accepts no abbreviations, so that a mistyped option cannot start something, such as a download of 12 GB.
    """

    def __init__(self, **options: Any):
        super().__init__(**options, allow_abbrev=False)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse, and report all unknown options at once. A recipe's overrides may follow options."""
        words = sys.argv[1:] if args is None else list(args)
        first = next(iter(words), "")
        if first.startswith("-") and first not in self._option_string_actions:
            self.error(self._explain_unknown([first]))  # otherwise argparse reports a missing command
        parsed, unknown = self.parse_known_args(words, namespace)
        if isinstance(overrides := getattr(parsed, "overrides", None), list):  # argparse takes only one group of them
            overrides.extend(word for word in unknown if not word.startswith("-"))
            unknown = [word for word in unknown if word.startswith("-")]
        if unknown:
            parser = _of_command(self, words)
            parser.error(parser._explain_unknown(unknown))
        return parsed

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        for pattern, plain in _PLAIN.items():
            message = re.sub(pattern, plain, message)
        end = "" if message.endswith("?") else "."
        self.exit(2, f"{self.prog}: {message}{end} See `{self.prog} --help`.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            hint = did_you_mean(value, known) or f"; it is one of {', '.join(known)}"
            raise argparse.ArgumentError(action, f"there is no {value!r}{hint}")

    def _explain_unknown(self, words: Sequence[str]) -> str:
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not options:
            return f"this command does not take {' '.join(words)!r}"
        known = self._option_string_actions
        return "; ".join(f"there is no option {option}{did_you_mean(option, known)}" for option in options)


def _of_command(parser: CommandParser, words: Sequence[str]) -> CommandParser:
    """Return the parser of the command, or of its action, that the words name."""
    rest = iter(words)
    while (commands := next(_commands(parser), None)) is not None:
        name = next((word for word in rest if word in commands), None)
        if name is None:
            break
        parser = commands[name]
    return parser


def _commands(parser: argparse.ArgumentParser) -> Iterator[dict[str, CommandParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield action.choices
