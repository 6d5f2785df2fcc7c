"""A parser that suggests the option or name that the user may have meant, and accepts no abbreviation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from arpo_verl.lib.config import did_you_mean


class CommandParser(argparse.ArgumentParser):
    """Parse as argparse does, without lines of usage, and with "did you mean". Commands use this class too.

    It accepts no abbreviations, so that a mistyped option cannot start something, such as a download of 12 GB.
    """

    def __init__(self, **options: Any):
        if "\n" in f"{options.get('description')}{options.get('epilog')}":  # its lines are as we want them
            options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(**options, allow_abbrev=False)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse, and report an option before the command, where argparse reports a missing command."""
        words = sys.argv[1:] if args is None else list(args)
        if words and words[0].startswith("-") and words[0] not in self._option_string_actions:
            self._refuse(words[:1])
        return super().parse_args(words, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse, and report all unknown options at once. A recipe's overrides may follow options."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if isinstance(overrides := getattr(parsed, "overrides", None), list):  # argparse takes only one group of them
            overrides.extend(word for word in unknown if not word.startswith("-"))
            unknown = [word for word in unknown if word.startswith("-")]
        if unknown:
            self._refuse(unknown)
        return parsed, []

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        message = message.removeprefix("argument ")
        end = "" if message.endswith("?") else "."
        self.exit(2, f"{self.prog}: {message}{end} See `{self.prog} --help`.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            hint = did_you_mean(value, known) or f"; it is one of {', '.join(known)}"
            raise argparse.ArgumentError(action, f"there is no {value!r}{hint}")

    def _refuse(self, words: Sequence[str]) -> NoReturn:
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not options:
            self.error(f"this command does not take {' '.join(words)!r}")
        known = self._option_string_actions
        self.error("; ".join(f"there is no option {option}{did_you_mean(option, known)}" for option in options))
