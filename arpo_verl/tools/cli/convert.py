"""`arpo-verl convert` makes recipes from a script or configuration of the ARPO reference, EasyR1 or a fork."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arpo_verl.lib.config import require
from arpo_verl.lib.untrusted import printable

if TYPE_CHECKING:
    from arpo_verl.tools.migration.recipe import Converted


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "convert",
        description="Reads a training script (shell or SLURM, without running it) and the YAML that it names, or just "
        "a YAML file. Writes a recipe based on osworld_full for each training that the script starts. It takes over "
        "each option, or says why not, and lists what you must fill in. docs/reference/migration.md has the table.",
    )
    parser.add_argument("source", type=Path, metavar="SCRIPT|YAML", help="such as examples/osworld_subset32.sh")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="an option of the source, with another value"
    )
    parser.add_argument("--config", type=Path, metavar="YAML", help="the file for the script's config=")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="KEY",
        help="leave out this option or section of a fork; may be repeated",
    )
    parser.add_argument("--out", type=Path, metavar="YAML", help="default: recipes/EXPERIMENT_NAME.yaml; - prints it")


def run(args: argparse.Namespace) -> int:
    """Write the recipes and print what they lack."""
    from arpo_verl.tools.cli.recipes import save_recipe
    from arpo_verl.tools.migration.recipe import convert, describe, write_recipe
    from arpo_verl.tools.migration.settings import read_settings

    for text in args.overrides:
        require("=" in text, "what follows the script or YAML file", "KEY=VALUE", text, "convert one file at a time")
    overrides = dict(text.split("=", 1) for text in args.overrides)
    runs = read_settings(args.source, overrides, args.config, args.ignore)
    converted = [convert(settings) for settings in runs]
    for file in dict.fromkeys(file for settings in runs for file in settings.files):
        print(printable(f"Read {file}"), file=sys.stderr if args.out == Path("-") else sys.stdout)
    if args.out == Path("-"):
        print("\n---\n".join(write_recipe(one, args.source.name) for one in converted))
        return 0
    for one, path in zip(converted, _paths(args.out, converted), strict=True):
        save_recipe(path, write_recipe(one, args.source.name))
        print("\n".join(["", *describe(one)]))
        print(f"{path}: {len(one.options)} options. What it takes: arpo-verl doctor --recipe {path}")
        print(f"Train: python -m verl.trainer.main_ppo --config-dir {path.parent} --config-name {path.stem}")
    if any(not settings.is_arpo for settings in runs):
        command = "python -m arpo_verl.easyr1 config=THEIR.yaml data.train_files=TASKS"
        print(f"Or keep EasyR1 as your trainer, which is experimental: {command} (docs/easyr1.md)")
    return 0


def _paths(out: Path | None, converted: Sequence[Converted]) -> list[Path]:
    """Return a file for each recipe, numbered if several have the same name."""
    wanted = [out or Path("recipes") / f"{one.name}.yaml" for one in converted]
    earlier = [wanted[:place].count(path) for place, path in enumerate(wanted)]
    return [path.with_stem(f"{path.stem}_{n + 1}") if n else path for path, n in zip(wanted, earlier, strict=True)]
