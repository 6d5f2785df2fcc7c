"""The options of a recipe's section `environment:` on a command line."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from arpo_verl.desktops.config import EMBEDDED, EnvironmentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import build_config
from arpo_verl.types import Size


def add_environment_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument("--provider", default=EMBEDDED, help="as a recipe's environment.provider (default: embedded)")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another option of a recipe's environment section; VALUE is JSON or plain text; may be repeated",
    )


def build_environment(args: argparse.Namespace, defaults: Mapping[str, Any]) -> EnvironmentConfig:
    """Build the section from `--provider` and `--option`, over `defaults`.

    Raises:
        ConfigError: an option does not exist or has a wrong value.
    """
    values = {**defaults, "provider": args.provider, **parse_options(args.option, "--option", "environment.")}
    return build_config(EnvironmentConfig, "environment", values)


def parse_size(text: str) -> Size:
    """Parse `WIDTHxHEIGHT`, for argparse."""
    match = re.fullmatch(r"(\d+)[xX](\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"a size must be WIDTHxHEIGHT such as 1920x1080, got {text!r}")
    return Size(int(match[1]), int(match[2]))


def parse_options(texts: Sequence[str], flag: str, section: str) -> dict[str, Any]:
    """Parse the `KEY=VALUE`s of a repeated flag; a key may begin with the section's name.

    Raises:
        ConfigError: there is no `=`.
    """
    options = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"{flag} must be KEY=VALUE, got {text!r}")
        try:
            options[name.strip().removeprefix(section)] = json.loads(value)
        except json.JSONDecodeError:
            options[name.strip().removeprefix(section)] = value
    return options
