"""`arpo-verl convert`: a recipe from a training script or configuration of the ARPO reference or of EasyR1."""

from __future__ import annotations

import argparse
from pathlib import Path

from arpo_verl.config import require


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "convert",
        description="Reads a training script (it is not run) with the YAML that it names, or a YAML file alone, and "
        "writes a recipe over osworld_full. Each of their options is taken over, or named with the reason why not; one "
        "that they do not have is an error. docs/migration.md has the table.",
    )
    parser.add_argument("source", type=Path, metavar="SCRIPT|YAML", help="such as examples/osworld_subset32.sh")
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="an option of theirs, instead of what the source says"
    )
    parser.add_argument("--config", type=Path, metavar="YAML", help="where the script's config= lies")
    parser.add_argument("--out", type=Path, metavar="YAML", help="default: recipes/EXPERIMENT_NAME.yaml; - prints it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the recipe and tell what it does not have."""
    from arpo_verl.cli.recipes import save_recipe
    from arpo_verl.migration.recipe import convert, describe, write_recipe
    from arpo_verl.migration.settings import read_settings

    for text in args.overrides:
        require("=" in text, "an override", "KEY=VALUE", text)
    converted = convert(read_settings(args.source, dict(text.split("=", 1) for text in args.overrides), args.config))
    recipe = write_recipe(converted, args.source.name)
    if args.out == Path("-"):
        print(recipe)
        return 0
    path = save_recipe(args.out or Path("recipes") / f"{converted.name}.yaml", recipe)
    print("\n".join(describe(converted)))
    print(f"{path}: {len(converted.options)} options. What it takes: arpo-verl doctor --recipe {path}")
    print(f"Train: python -m verl.trainer.main_ppo --config-dir {path.parent} --config-name {path.stem}")
    return 0
