"""`arpo-verl train RECIPE` runs the stock trainer, and prints one line for each training step."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from arpo_verl.lib.config import require
from arpo_verl.lib.files import check_place
from arpo_verl.tools.cli.composing import compose_recipe
from arpo_verl.tools.cli.recipes import find_recipe
from arpo_verl.tools.cli.terminal import shown_command

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from arpo_verl.tools.cli.trainer_process import TrainerProcess

TRAINER = "verl.trainer.main_ppo"
POLL_S = 0.5
"""How often we look for a new step."""

DESCRIPTION = """\
Trains a recipe with the stock trainer, `python -m verl.trainer.main_ppo`, and prints
one line for each step. Everything that veRL, Ray and the desktops print goes to
output.log in the run's folder. If the trainer fails, you see the last 40 lines of it.
The exit status is the trainer's.
"""
EPILOG = """examples:
  arpo-verl train demo
  arpo-verl train osworld_subset32 data.train_files=TASKS.json data.val_files=TASKS.json
  arpo-verl train recipes/mine.yaml trainer.total_training_steps=3
  arpo-verl train osworld_full run_dir=runs/second --weights-from runs/first

Ctrl-C stops a run; the same command resumes it from its last checkpoint.

If a part of the run dies (an engine, a worker, Ray's head, a node), the run starts
again by itself, once the old processes have ended and the cluster has the recipe's
GPUs. It does not if another error ends it before its first step, with --console, or
if trainer.resume_mode is not auto.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("train", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("recipe", metavar="RECIPE", help="a name from `arpo-verl recipes list`, or a YAML file")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="options as on the trainer's own command line"
    )
    parser.add_argument(
        "--weights-from",
        type=Path,
        metavar="CHECKPOINT",
        help="begin a new run with only the weights of this checkpoint, a global_step_N or a run's folder: fresh "
        "optimizer, order of tasks and store, from step 0",
    )
    parser.add_argument("--console", action="store_true", help="print veRL's own console output instead")
    parser.add_argument(
        "--restarts",
        type=int,
        default=3,
        metavar="N",
        help="after a crash start again, at most N times in a row without a new step (default: 3; 0: never) and ten "
        "times a day, or N if that is more",
    )


def run(args: argparse.Namespace) -> int:
    """Train; return the trainer's exit status."""
    recipe = find_recipe(args.recipe)
    overrides = list(args.overrides)
    config = compose_recipe(recipe, overrides)
    if args.weights_from is not None:
        weights = _weights(args.weights_from, config)
        overrides.append(f"actor_rollout_ref.model.path={_quoted(weights)}")
        config.actor_rollout_ref.model.path = str(weights)
    command = [sys.executable, "-u", "-X", "faulthandler", "-m", TRAINER]
    command += ["--config-dir", str(recipe.parent.absolute()), "--config-name", recipe.stem, *overrides]
    env = dict(os.environ)
    if config.trainer.device == "cpu":
        env.setdefault("VERL_PLATFORM", "cpu")  # not in this process, which would import torch
    require(args.restarts >= 0, "--restarts", "0 or more", args.restarts, "0 never starts the run again")
    if args.console:
        os.execve(sys.executable, [*command, _with_console(config)], env)  # noqa: S606
    return _train(config, command, env, args.restarts)


def _weights(source: Path, config: DictConfig) -> Path:
    """Return the folder of a checkpoint's weights, for a run that begins with them; shards are merged into the run's
    folder once.

    Raises:
        ConfigError: there are no such weights, or the run has begun with other ones.
    """
    from arpo_verl.plugin.resume import read_record
    from arpo_verl.tools.evaluation.checkpoint import find_checkpoint, model_folder, place_of_model

    require(
        config.trainer.resume_mode != "resume_path",
        "trainer.resume_mode",
        "auto or disable with --weights-from: the run would resume from trainer.resume_from_path, with its weights",
        config.trainer.resume_mode,
        "leave one of the two out",
    )
    checkpoint, run_dir = find_checkpoint(source, "--weights-from"), Path(config.run_dir).absolute()
    place, saved = place_of_model(checkpoint, run_dir), _saved_step(config)
    if saved is not None:
        record = read_record(Path(config.trainer.default_local_dir) / f"global_step_{saved}")
        began_with = None if record is None else record.settings.get("actor_rollout_ref.model.path")
        require(
            began_with == json.dumps(str(place)),
            "run_dir",
            f"the folder of a new run, or of one that began with the weights of {checkpoint.name}",
            config.run_dir,
            "it has checkpoints of other weights, and would resume from them; name another folder",
        )
    if checkpoint.is_sharded and not place.is_dir():
        print(f"merging      {checkpoint.name} into {place}", flush=True)
    return model_folder(checkpoint, run_dir)


def _quoted(path: Path) -> str:
    """Return the path as an override's value.

    Raises:
        ConfigError: a recipe would take a part of it for a reference.
    """
    text = str(path)
    require(
        "\\" not in text and "${" not in text,
        "--weights-from",
        "a folder without \\ and ${ in its path, which a recipe reads as something else",
        text,
        "rename it",
    )
    return "'" + text.replace("'", "\\'") + "'"


def _with_console(config: DictConfig) -> str:
    """Return the override that adds veRL's console to the recipe's loggers."""
    loggers = config.trainer.logger
    names = [loggers] if isinstance(loggers, str) else loggers
    return f"trainer.logger=[{','.join(dict.fromkeys(['console', *names]))}]"


def _train(config: DictConfig, command: list[str], env: dict[str, str], most_restarts: int) -> int:
    from arpo_verl.plugin.recipe.options import count_steps
    from arpo_verl.records.ended_starts import note_fault, read_faults
    from arpo_verl.records.layout import OUTPUT_FILE
    from arpo_verl.records.run_lock import check_free
    from arpo_verl.records.starts import read_starts
    from arpo_verl.tools.cli.trainer_process import Restarts, TrainerProcess, wait_until_free

    run_dir, total, saved = Path(config.run_dir), count_steps(config), _saved_step(config)
    if total is not None and saved == total:  # if there are more, the trainer reports the mistake
        print(_finished(config, total))
        return 0
    check_place("run_dir", run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    check_free(run_dir)
    log = run_dir / OUTPUT_FILE
    log.touch()  # from here on `arpo-verl view` shows the run
    print(f"run folder   {run_dir}\noutput       {log}\nwatch it     {shown_command('view', run_dir)}")
    if saved is not None:
        print(f"goes on      after step {saved}")
    restarts = Restarts(most_restarts if config.trainer.resume_mode == "auto" else 0)
    while True:
        print(flush=True)
        earlier_starts, earlier_faults = len(read_starts(run_dir)), len(read_faults(run_dir))
        process = TrainerProcess(command, log, env)
        with process.gets_signals():
            step = _follow(process, run_dir, earlier_starts, total)
        fault = next(iter(read_faults(run_dir)[earlier_faults:]), None)
        if not restarts.count(process, step, fault):
            _tell_end(process, config, step, [line for line in (fault and fault.sentence, restarts.limit) if line])
            return process.status
        reason = fault.sentence if fault else process.describe_end()
        print(f"\ncrashed      {_when(step)}: {reason}", flush=True)
        if fault is None:
            with contextlib.suppress(OSError):  # such as a full disk
                note_fault(run_dir, f"{reason} {_when(step)}")
        wait_until_free(config, process)
        saved = _saved_step(config)
        if total is not None and saved == total:
            print(_finished(config, total))
            print("But it crashed after it had saved the last one: a validation after that step is missing")
            return process.status
        where = "from the beginning" if saved is None else f"after step {saved}"
        print(f"goes on      {where}, {restarts}")


def _when(step: int | None) -> str:
    return "before its first step" if step is None else f"after step {step}"


def _follow(process: TrainerProcess, run_dir: Path, earlier_starts: int, total: int | None) -> int | None:
    """Print what the run logs until it ends; return the last logged step."""
    from arpo_verl.records.starts import read_starts
    from arpo_verl.records.step_lines import StepLines

    lines, has_ended, was_stopped = None, False, False
    while not has_ended:
        has_ended = process.has_ended(POLL_S)
        if lines is None and len(starts := read_starts(run_dir)) > earlier_starts:
            lines = StepLines(run_dir, total)  # from now on the metrics file belongs to this start
            estimate = starts[-1].get("estimate")
            for line in estimate if isinstance(estimate, list) else ():
                print(line, flush=True)
        for line in lines.read_new() if lines else ():
            print(line, flush=True)
        if process.was_stopped and not was_stopped:
            was_stopped = True
            print("stopping the trainer; press Ctrl-C again to kill it", flush=True)
    return lines.step if lines else None


def _tell_end(process: TrainerProcess, config: DictConfig, step: int | None, reasons: list[str]) -> None:
    from arpo_verl.records.layout import METRICS_FILE
    from arpo_verl.records.run_summary import format_summary, summarize_run

    run_dir, when = Path(config.run_dir), _when(step)
    if process.status == 0:
        has_metrics = (run_dir / METRICS_FILE).is_file()
        print(f"\n{format_summary(summarize_run(run_dir))}" if has_metrics else f"\n{run_dir} is finished")
    elif process.was_stopped:
        saved = _saved_step(config)
        where = "starts again, since nothing was saved" if saved is None else f"resumes after step {saved}"
        print(f"\nstopped {when}; the same command {where}")
    elif step is None and not reasons and (refusal := process.refusal()):
        print("\n".join(refusal), file=sys.stderr)
    else:
        print(f"\nthe last lines of {process.log}:\n", file=sys.stderr)
        print("\n".join(process.last_lines()), file=sys.stderr)
        for line in reasons:
            print(f"\narpo-verl: {line}", file=sys.stderr)
        print(f"\narpo-verl: {process.describe_end()} {when}; all of its output is in {process.log}", file=sys.stderr)


def _saved_step(config: DictConfig) -> int | None:
    """Return the step that the trainer will resume from; None if it starts from the beginning."""
    from arpo_verl.records.layout import saved_step

    trainer = config.trainer
    return saved_step(Path(trainer.default_local_dir)) if trainer.resume_mode == "auto" else None


def _finished(config: DictConfig, total: int) -> str:
    run_dir = Path(config.run_dir)
    option = "trainer.total_epochs" if config.trainer.total_training_steps is None else "trainer.total_training_steps"
    return (
        f"{run_dir} is finished: it has all {total} steps.\n"
        f"  its results       {shown_command('summary', run_dir)}\n"
        f"  its episodes      {shown_command('view', run_dir)}\n"
        f"  start again       the same command with another run_dir, or after rm -r {shlex.quote(str(run_dir))}\n"
        f"  train longer      the same command with a larger {option} than the recipe's"
    )
