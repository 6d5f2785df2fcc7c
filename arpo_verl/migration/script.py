"""This module reads the training commands of a script of theirs as text: it never runs any part of the script.

It follows the values that the script gives its variables, through functions, loops and conditions. A value that only a
shell could know (a command's output, the environment, an argument) becomes `Unreadable`, and matters only to options.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from arpo_verl.errors import ConfigError
from arpo_verl.migration.shell.reader import Reader
from arpo_verl.migration.shell.values import Field, shorten

MAX_BYTES = 256 * 1024
MAX_COMMANDS = 20
TRAINERS = ("verl.trainer.main", "verl/trainer/main.py")
STOCK_TRAINER = "verl.trainer.main_ppo"

# Forks that parse their command line otherwise write `--KEY=VALUE`, or Hydra's `+KEY=VALUE`.
_OVERRIDE = re.compile(r"(?:--|\+{1,2})?([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.S)
_TRAINING = re.compile(r"verl[./]trainer[./]main(?:\.py)?(?:\s|$)")
_SBATCH = re.compile(r"^#SBATCH\s+(--?[\w-]+)[=\s]\s*(\S+)", re.M)
# SLURM sets these variables by a job's options.
_SLURM = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "-N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "--gres": ("SLURM_GPUS_ON_NODE",),
    "--job-name": ("SLURM_JOB_NAME",),
    "-J": ("SLURM_JOB_NAME",),
}

Words: TypeAlias = tuple[Field, ...]


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
    reader = Reader(_slurm_variables(text), is_script=lambda word: _TRAINING.search(word) is not None)
    reader.read(text)
    commands: list[Command] = []
    for index, started in enumerate(reader.started):
        place = _trainer(started)
        if place is not None:
            command = _command(started, place, _stray(reader.started[index + 1 :][:50]), tuple(reader.sourced))
            commands += [command] if command not in commands else []
        if len(commands) > MAX_COMMANDS:
            raise ConfigError(f"the script starts more than {MAX_COMMANDS} trainings; convert a part of it")
    if not commands:
        raise _no_training(reader.started)
    return commands


def _slurm_variables(text: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    for option, value in _SBATCH.findall(text):
        value = value.rpartition(":")[2] if option in ("--gres", "--gpus-per-node") else value
        if value.isdecimal() or option in ("--job-name", "-J"):
            variables |= {name: value for name in _SLURM.get(option, ())}
    return variables


def _trainer(started: Words) -> int | None:
    """Return where the trainer's own arguments begin; None if the command is no training."""
    for place, word in enumerate(started):
        if word.text.endswith(TRAINERS) and not re.search(r"\s", word.text):
            return place + 1
    return None


def _no_training(started: list[Words]) -> ConfigError:
    texts = [word.text for command in started for word in command]
    if STOCK_TRAINER in texts:
        return ConfigError(
            f"the script starts veRL ({STOCK_TRAINER}), whose options need no conversion; write them into a recipe "
            "with the defaults ppo_trainer and arpo (docs/recipes.md)"
        )
    others = sorted(
        {text for text in texts if re.fullmatch(r"verl[./]\S{1,60}|\S{1,200}\.(?:sh|bash|slurm|sbatch)", text)}
    )
    found = f"; it starts {', '.join(others[:5])}" if others else ""
    return ConfigError(
        f"the script must start a training by `python -m {TRAINERS[0]}`, but does not{found}. Convert the script that "
        "does, or the YAML file with its options"
    )


def _command(started: Words, place: int, stray: list[str], sourced: tuple[str, ...]) -> Command:
    overrides: dict[str, str | Unreadable] = {}
    left_out: list[str] = []
    for word in started[place:]:
        found = _OVERRIDE.fullmatch(word.text)
        if found is not None:
            overrides[found[1]] = found[2] if word.because is None else Unreadable(found[2], word.because)
        elif word.text.strip():
            left_out.append(word.text)
    notes = [f"`{shorten(word)}` after the training command is not KEY=VALUE and was left out" for word in left_out]
    notes += [f"`{shorten(word)}` comes after the end of the command, so a shell would not pass it" for word in stray]
    if any(isinstance(value, Unreadable) for value in overrides.values()):
        notes += [f"`{shorten(name)}`, which the script sources, was not read" for name in dict.fromkeys(sourced)]
    return Command(overrides.pop("config", None), overrides, tuple(notes))


def _stray(behind: list[Words]) -> list[str]:
    """Return options on their own lines after the command, which a comment or an empty line has cut off."""
    stray: list[str] = []
    for started in behind:
        first = started[0].text
        if "." not in first.partition("=")[0] or not _OVERRIDE.fullmatch(first):
            break
        stray += [word.text for word in started]
    return stray
