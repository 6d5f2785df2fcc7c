"""`arpo-verl recipes` prints the folder for `--config-dir`, lists its recipes, and copies one to change."""

from __future__ import annotations

import argparse
import re
import secrets
import shlex
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import did_you_mean
from arpo_verl.lib.files import check_place
from arpo_verl.tools.cli.terminal import shown_command

PACKAGE = "arpo_verl.recipes"
DEFAULTS = re.compile(r"^defaults:\n((?:  - .*\n)+)", re.M)
EXPERIMENT = re.compile(r"^(  experiment_name: \w+)", re.M)
SEARCH_PATH = (
    "  # What this recipe builds on, and the groups baseline/, context/, engine/ and policy/.\n"
    f"  searchpath: [pkg://{PACKAGE}]\n"
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
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
    """Return the first sentence of every recipe's opening comment, by the recipe's name; parts of recipes come last."""
    folder = recipes_folder()
    texts = {str(path.relative_to(folder).with_suffix("")): path.read_text("utf-8") for path in folder.rglob("*.yaml")}
    order = sorted(texts, key=lambda name: (not _is_whole(texts[name]), name.count("/"), name))
    return {name: _first_sentence(texts[name]) for name in order}


def copy_recipe(name: str, folder: Path) -> Path:
    """Copy a recipe so that it composes in its folder, with its bases in the package.

    The copy's experiment gets a name that no other has, so that a changed copy never resumes another one's run.

    Returns:
        The copy: `folder/name.yaml`.

    Raises:
        ConfigError: there is no such recipe, the copy exists, or Hydra would refuse it beside another copy.
    """
    text = EXPERIMENT.sub(rf"\g<1>_{secrets.token_hex(3)}", _shipped(name).read_text("utf-8"), count=1)
    return save_recipe(folder / f"{name}.yaml", text)


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
    if _is_whole(text := path.read_text("utf-8")):
        tasks = ["data.train_files=TASKS.json", "data.val_files=TASKS.json"] if _needs_tasks(text) else []
        return _tell(f"{path}: change it, then train: {shown_command('train', path, *tasks)}")
    if args.name.startswith("easyr1/"):
        return _tell(f"{path}: change it, then train: python -m arpo_verl.easyr1 config={shlex.quote(str(path))}")
    return _tell(f"{path}: change it; the recipes in {args.folder} use it instead of the package's")


def _first_sentence(text: str) -> str:
    comment = re.match(r"(?:# @package .*\n)?((?:#.*\n)+)", text)
    words = " ".join(line.lstrip("# ") for line in comment[1].splitlines()) if comment else ""
    return re.split(r"(?<=\.)\s", words)[0]


def _is_whole(text: str) -> bool:
    """Return whether the recipe trains by itself, rather than being a part of others."""
    return DEFAULTS.search(text) is not None and not text.startswith("# @package")


def _needs_tasks(text: str) -> bool:
    """Return whether the recipe, or the nearest base that says so, leaves its tasks to the command line."""
    if "\n  train_files:" in text:
        return "\n  train_files: ???" in text
    return any(_needs_tasks(_shipped(base).read_text("utf-8")) for base in _bases(text) if base in describe_recipes())


def _bases(text: str) -> list[str]:
    defaults = DEFAULTS.search(text)
    return re.findall(r"- (\w+)$", defaults[1], re.M) if defaults else []


def _add_search_path(text: str) -> str:
    """Add the search path, which Hydra accepts only in the main recipe."""
    if not _is_whole(text):
        return text
    if re.search(r"^hydra:\n", text, re.M):
        return re.sub(r"^hydra:\n", rf"\g<0>{SEARCH_PATH}", text, count=1, flags=re.M)
    return DEFAULTS.sub(rf"\g<0>\nhydra:\n{SEARCH_PATH}", text, count=1)


def _check_bases(recipes: Mapping[str, str], folder: Path) -> None:
    """Refuse a recipe with a search path that builds on another one: Hydra accepts only the main recipe's."""
    for name, text in recipes.items():
        for base in _bases(text):
            if "\n  searchpath:" in recipes.get(base, ""):
                raise ConfigError(
                    f"{name} builds on {base}, and Hydra would refuse it in {folder}, since both have a "
                    "hydra.searchpath; name another folder for one of them"
                )
