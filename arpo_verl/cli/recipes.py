"""`arpo-verl recipes` prints the folder for `--config-dir`, lists its recipes, and copies one to change."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from arpo_verl.config import did_you_mean
from arpo_verl.errors import ConfigError
from arpo_verl.files import check_place

PACKAGE = "arpo_verl.recipes"
DEFAULTS = re.compile(r"^defaults:\n((?:  - .*\n)+)", re.M)
SEARCH_PATH = (
    "  # What this recipe builds on, and the groups baseline/, context/, engine/ and policy/.\n"
    f"  searchpath: [pkg://{PACKAGE}]\n"
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = commands.add_parser("recipes")
    parser.set_defaults(run=lambda args: _tell(str(recipes_folder())))
    actions = parser.add_subparsers(metavar="ACTION")
    actions.add_parser("list", help="list every recipe in a line").set_defaults(run=_list)
    copy = actions.add_parser("copy", help="copy a recipe to your own folder, to change it")
    copy.add_argument("name", help="a name from `arpo-verl recipes list`")
    copy.add_argument("folder", nargs="?", type=Path, default=Path("recipes"), help="default: recipes")
    copy.set_defaults(run=_copy)


def recipes_folder() -> Path:
    """Return the folder of the shipped recipes: a checkout's own, or the installed one."""
    return Path(str(resources.files(PACKAGE))).resolve()


def describe_recipes() -> dict[str, str]:
    """Return the first sentence of every recipe's opening comment, by the recipe's name."""
    folder = recipes_folder()
    paths = sorted(folder.rglob("*.yaml"), key=lambda path: (len(path.relative_to(folder).parts), path))
    return {str(path.relative_to(folder).with_suffix("")): _first_sentence(path.read_text("utf-8")) for path in paths}


def copy_recipe(name: str, folder: Path) -> Path:
    """Copy a recipe so that it composes in its folder, with its bases in the package.

    Returns:
        The copy: `folder/name.yaml`.

    Raises:
        ConfigError: there is no such recipe, the copy exists, or Hydra would refuse it beside another copy.
    """
    return save_recipe(folder / f"{name}.yaml", _shipped(name).read_text("utf-8"))


def find_recipe(name: str) -> Path:
    """Return the file of a shipped recipe, or the path itself if it ends in `.yaml`.

    Raises:
        ConfigError: there is no such recipe.
    """
    return Path(name) if name.endswith(".yaml") else _shipped(name)


def save_recipe(path: Path, text: str) -> Path:
    """Write a recipe so that it composes in its folder, with its bases in the package.

    Raises:
        ConfigError: the file exists, or Hydra would refuse it beside another one.
    """
    folder, name, text = path.parent, path.stem, _add_search_path(text)
    check_place("the recipe's folder", folder)
    try:
        others = {other.stem: other.read_text("utf-8", "replace") for other in folder.glob("*.yaml") if other.is_file()}
        _check_bases({**others, name: text}, folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists, and we do not overwrite it; move it, or name another folder") from error
    except OSError as error:
        raise ConfigError(f"cannot write the recipe to {folder}: {error}; name a writable folder") from error
    return path


def _shipped(name: str) -> Path:
    known = describe_recipes()
    if name not in known:
        raise ConfigError(f"there is no recipe {name!r}{did_you_mean(name, known) or '.'} Known: {', '.join(known)}")
    return recipes_folder() / f"{name}.yaml"


def _tell(text: str) -> int:
    print(text)
    return 0


def _list(args: argparse.Namespace) -> int:
    known = describe_recipes()
    width = max(map(len, known))
    return _tell("\n".join(f"{name:<{width}}  {sentence}" for name, sentence in known.items()))


def _copy(args: argparse.Namespace) -> int:
    path = copy_recipe(args.name, args.folder)
    if DEFAULTS.search(path.read_text("utf-8")):
        return _tell(f"{path}: change it, then train with --config-dir {args.folder} --config-name {args.name}")
    return _tell(f"{path}: change it; the recipes in {args.folder} use it instead of the package's")


def _first_sentence(text: str) -> str:
    comment = re.match(r"(?:# @package .*\n)?((?:#.*\n)+)", text)
    words = " ".join(line.lstrip("# ") for line in comment[1].splitlines()) if comment else ""
    return re.split(r"(?<=\.)\s", words)[0]


def _add_search_path(text: str) -> str:
    """Add the search path; a recipe that others build on has no defaults, and needs no path."""
    if re.search(r"^hydra:\n", text, re.M):
        return re.sub(r"^hydra:\n", rf"\g<0>{SEARCH_PATH}", text, count=1, flags=re.M)
    return DEFAULTS.sub(rf"\g<0>\nhydra:\n{SEARCH_PATH}", text, count=1)


def _check_bases(recipes: Mapping[str, str], folder: Path) -> None:
    """Refuse a recipe with a search path that builds on another one: Hydra accepts only the main recipe's."""
    for name, text in recipes.items():
        defaults = DEFAULTS.search(text)
        for base in re.findall(r"- (\w+)$", defaults[1], re.M) if defaults else ():
            if PACKAGE in recipes.get(base, ""):
                raise ConfigError(
                    f"{name} builds on {base}, and Hydra would refuse it in {folder}, since both have a "
                    "hydra.searchpath; name another folder for one of them"
                )
