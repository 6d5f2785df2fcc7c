"""The training commands of a script of ARPO's, EasyR1's or a fork's, read as text: no part of the script is run.

A value that only a shell could know (a command's output, the environment, what a branch decides) becomes `Unreadable`,
and matters only to options. Whatever else names the trainer but is not read becomes a note with its line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from arpo_verl.errors import ConfigError
from arpo_verl.tools.migration.shell import Statement, read_commands, shorten

MAX_BYTES = 256 * 1024
MAX_COMMANDS = 20
TRAINERS = ("verl.trainer.main", "verl/trainer/main.py")
STOCK_TRAINER = "verl.trainer.main_ppo"

# Forks that parse their command line otherwise write `--KEY=VALUE`, or Hydra's `+KEY=VALUE`.
_OVERRIDE = re.compile(r"(?:--|\+{1,2})?([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.S)
_TRAINING = re.compile(r"verl[./]trainer[./]main(?:\.py)?(?![\w./-])")


@dataclass(frozen=True)
class Unreadable:
    """An unreadable value has its source, and why only running the script could show it."""

    source: str
    because: str


@dataclass(frozen=True)
class Command:
    """A command is how a script starts the trainer.

    Attributes:
        config: the YAML file that it names by `config=`, or None.
        overrides: option -> its text, or why that cannot be read.
        notes: a sentence for each thing that we could not follow.
    """

    config: str | Unreadable | None
    overrides: dict[str, str | Unreadable]
    notes: tuple[str, ...] = ()


def read_script(text: str) -> list[Command]:
    """Return the training commands of a shell script, each once, in its order.

    Raises:
        ConfigError: the script starts no training of theirs, or too many, or is no shell script.
    """
    if "\0" in text or len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise ConfigError(f"a training script must have at most {MAX_BYTES} bytes, none of them null; got others")
    started = list(read_commands(text))
    notes = tuple(dict.fromkeys(note for one in started for note in _notes(one)))
    commands: list[Command] = []
    for one in started:
        place = _trainer(one)
        if place is not None:
            command = _command(one, place, notes)
            commands += [command] if command not in commands else []
        if len(commands) > MAX_COMMANDS:
            raise ConfigError(f"the script starts more than {MAX_COMMANDS} trainings; convert a part of it")
    if not commands:
        raise _no_training(started, notes)
    return commands


def _trainer(statement: Statement) -> int | None:
    """Return where the trainer's own arguments begin; None if the command is no training."""
    for place, word in enumerate(statement.fields):
        if word.text.endswith(TRAINERS) and not re.search(r"[\s=]", word.text):
            return None if statement.is_saying else place + 1
    return None


def _no_training(started: list[Statement], notes: tuple[str, ...]) -> ConfigError:
    texts = [word.text for one in started if not one.is_saying for word in one.fields]
    if STOCK_TRAINER in texts:
        return ConfigError(
            f"the script starts veRL ({STOCK_TRAINER}), whose options need no conversion; write them into a recipe "
            "with the defaults ppo_trainer and arpo (docs/recipes.md)"
        )
    others = sorted(
        {text for text in texts if re.fullmatch(r"verl[./]\S{1,60}|\S{1,200}\.(?:sh|bash|slurm|sbatch)", text)}
    )
    found = f"; it starts {', '.join(others[:5])}" if others else ""
    message = (
        f"the script must start a training by `python -m {TRAINERS[0]}`, but does not{found}. Convert the script that "
        "does, or the YAML file with its options"
    )
    return ConfigError("\n".join([message, *notes]))


def _notes(statement: Statement) -> list[str]:
    """Return a sentence for each thing that we do not read, though the training may depend on it."""
    texts = [word.text for word in statement.fields]
    line, shown = f"line {statement.line}", shorten(" ".join(statement.words))
    inner = any(_TRAINING.search(text) for text in (*texts, statement.document))
    if inner and _trainer(statement) is None and not statement.is_saying:
        return [f"{line}: the training command within `{shown}` is not read; convert it as a script of its own"]
    if not texts:
        return []
    if "." in texts[0].partition("=")[0] and _OVERRIDE.fullmatch(texts[0]):  # a comment or an empty line cut it off
        return [
            f"{line}: `{shorten(text)}` comes after the end of the command, so a shell would not pass it"
            for text in texts
        ]
    if texts[0] in ("source", ".", "eval") or (texts[0] in ("export", "declare") and re.search(r"\s[\"']?\$", shown)):
        return [f"{line}: what `{shown}` sets is not known"]
    return []


def _command(statement: Statement, place: int, notes: tuple[str, ...]) -> Command:
    overrides: dict[str, str | Unreadable] = {}
    left_out: list[str] = []
    for word in statement.fields[place:]:
        found = _OVERRIDE.fullmatch(word.text)
        if found is not None:
            overrides[found[1]] = found[2] if word.because is None else Unreadable(found[2], word.because)
        elif word.text.strip():
            why = word.because or f"line {statement.line}: it is not KEY=VALUE"
            left_out.append(f"`{shorten(word.text)}` after the training command was left out: {why}")
    return Command(overrides.pop("config", None), overrides, (*left_out, *notes))
