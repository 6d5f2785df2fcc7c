"""Add to the stock trainer's run through Hydra's callbacks: checks before it, a summary after it."""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from arpo_verl.engines.footprint import Footprint
from arpo_verl.errors import ArpoError, ConfigError, MissingDependencyError, PatchLostError, ReplayError, TaskError
from arpo_verl.lib.files import explain_refusal
from arpo_verl.lib.own_ray import settle_ray_token, start_ray
from arpo_verl.lib.untrusted import printable_lines
from arpo_verl.plugin.recipe.checks import check_recipe, joins_cluster
from arpo_verl.plugin.recipe.footprint import describe_schedule, estimate_recipe
from arpo_verl.plugin.recipe.options import count_steps
from arpo_verl.plugin.recipe.resuming import describe_resume
from arpo_verl.plugin.recipe.values import doubtful_names
from arpo_verl.plugin.run_watch import GO_ON, RUN_DIR_VARIABLE, in_words
from arpo_verl.records.ended_starts import note_fault, read_faults
from arpo_verl.records.layout import LATEST_CHECKPOINT, METRICS_FILE
from arpo_verl.records.metrics_files import keep_earlier_metrics
from arpo_verl.records.run_lock import hold_run
from arpo_verl.records.run_summary import format_summary, summarize_run
from arpo_verl.records.starts import note_start
from arpo_verl.records.step_lines import StepLines
from arpo_verl.versions import describe_untested

logger = logging.getLogger(__name__)

RAY_JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
POLL_S = 0.5
"""Seconds between two looks for a new step."""
ENDING_S = 30
"""Seconds that this process has to end after an error: on a busy machine it hung in its last clean-up for minutes."""

_LASTING = (ConfigError, MissingDependencyError, PatchLostError, ReplayError, TaskError)
"""Errors that another start would meet again."""


class RunCallback(Callback):
    """The callback that `recipes/arpo.yaml` names under `hydra.callbacks`."""

    _steps: PrintedSteps | None = None
    _earlier_faults: int | None = None
    """Number of faults of this run's earlier starts, once it has begun."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse a run folder that cannot be written, before Hydra creates it and fails with a traceback.

        Make the run log into it, whatever other loggers the config names: the printed lines, `view` and `summary` read
        that file.
        """
        if "run_dir" not in config:
            refuse_unfit(config)
        loggers = OmegaConf.select(config, "trainer.logger")
        names = [loggers] if isinstance(loggers, str) else list(loggers or ())
        OmegaConf.update(config, "trainer.logger", list(dict.fromkeys([*names, "file"])), force_add=True)
        try:
            Path(config.run_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            refuse_unfit(config)
            raise SystemExit(f"arpo_verl: run_dir={config.run_dir}: {explain_refusal(error)}") from error

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse runs one after the other in this process: all would use the Ray of the first, and log as the first."""
        if str(OmegaConf.select(config, "hydra.launcher._target_")).endswith(".BasicLauncher"):
            raise SystemExit(
                "arpo_verl: --multirun must start a process for each run, but Hydra's basic launcher starts none; "
                "type a command for each run, with its own trainer.experiment_name"
            )

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Refuse a recipe that cannot run, before Ray, the model or a desktop starts. Log into the run's folder."""
        refuse_unfit(config)
        plan = tell_plan(config)
        settle_ray_token(joins=joins_cluster(config))
        if not joins_cluster(config) and getattr(ray.init, "func", None) is not start_ray:
            ray.init = functools.partial(start_ray, ray.init)  # veRL calls it by this name
        run_dir = Path(config.run_dir).absolute()
        try:
            hold_run(run_dir)
        except ArpoError as error:
            raise SystemExit(f"arpo_verl: {error}") from error
        except OSError as error:
            raise SystemExit(f"arpo_verl: run_dir={config.run_dir}: {explain_refusal(error)}") from error
        checkpoint = Path(config.trainer.default_local_dir, LATEST_CHECKPOINT)
        keep_earlier_metrics(run_dir, resumes=config.trainer.resume_mode != "disable" and checkpoint.is_file())
        # veRL's loggers read their paths from the environment.
        os.environ["VERL_FILE_LOGGER_PATH"] = str(run_dir / METRICS_FILE)
        os.environ.setdefault("TENSORBOARD_DIR", str(run_dir / "tensorboard"))
        os.environ[RUN_DIR_VARIABLE] = str(run_dir)
        hand_to_ray_workers("VERL_FILE_LOGGER_PATH", "TENSORBOARD_DIR", "VERL_PLATFORM", RUN_DIR_VARIABLE)
        print(f"watch it: arpo-verl view {run_dir}", flush=True)
        # Both last: Hydra turns an error here into a warning.
        total_steps = count_steps(config)
        note_start(run_dir, config, plan, total_steps)
        self._steps = PrintedSteps(StepLines(run_dir, total_steps))
        self._earlier_faults = len(read_faults(run_dir))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Print what the run reached and where everything is, or why it ended."""
        if self._steps is not None:
            self._steps.close()
        if job_return.status is JobStatus.COMPLETED:
            print(format_summary(summarize_run(Path(config.run_dir))))
        else:
            print("the trainer failed", flush=True)  # `arpo-verl train` knows these words
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(ENDING_S)
            if self._earlier_faults is not None:
                print_fault(Path(config.run_dir).absolute(), self._earlier_faults, job_return._return_value)


class PrintedSteps:
    """Prints a line for each training step while the trainer works, since veRL's console prints hundreds of numbers.

    It reads the metrics file, which another of Ray's processes writes: the driver has no other information.
    """

    def __init__(self, lines: StepLines) -> None:
        self._lines = lines
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="arpo_verl-steps", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._ended.wait(POLL_S):
            self._print_new()

    def _print_new(self) -> None:
        for line in self._lines.read_new():
            print(line, flush=True)

    def close(self) -> None:
        """Print the remaining lines, and stop."""
        self._ended.set()
        self._thread.join()
        self._print_new()


def print_fault(run_dir: Path, earlier: int, error: object) -> None:
    """Print why the run ended, if the next start must know it; note it if `RunWatch` has not: the trainer's own death,
    or an error of ours that another start would meet again.

    Args:
        earlier: number of faults of the run's earlier starts.
        error: what veRL's `main` raised.
    """
    for cause in (getattr(error, "cause", None), error) if len(read_faults(run_dir)) == earlier else ():
        if isinstance(cause, ray.exceptions.RayActorError):
            note_fault(run_dir, f"A process of the run died. Ray says: {in_words(cause)} {GO_ON}")
        elif isinstance(cause, _LASTING):
            note_fault(run_dir, in_words(cause), lasts=True)
        else:
            continue
        break
    for fault in read_faults(run_dir)[earlier:][-1:]:
        print(f"the run ended: {fault.sentence}", flush=True)


def refuse_unfit(config: DictConfig) -> None:
    """End this process if the recipe cannot run, and list all problems.

    Raises:
        SystemExit: always, since Hydra turns other exceptions of a callback into warnings.
    """
    try:
        check_recipe(config, *_own_file())
    except ArpoError as error:
        raise SystemExit(f"arpo_verl: {printable_lines(str(error))}") from error  # it may quote a stranger's file
    except Exception as error:
        logger.exception("a check of the recipe failed")
        raise SystemExit(
            f"arpo_verl: the recipe cannot be checked ({type(error).__name__}: {error}), so the run does not start; "
            "look for a null, a 0 or a typo in what the traceback above, or in the run's output.log, names"
        ) from error


def _own_file() -> tuple[Path | None, list[str]]:
    """Return the file of Hydra's run, if it has one, and the command line's options."""
    if not HydraConfig.initialized():
        return None, []
    hydra = HydraConfig.get()
    folders = [
        Path(source.path) for source in hydra.runtime.config_sources if source.provider in ("main", "command-line")
    ]
    files = [folder / f"{hydra.job.config_name}.yaml" for folder in folders]
    return next((file for file in reversed(files) if file.is_file()), None), list(hydra.overrides.task)


def tell_plan(config: DictConfig) -> tuple[str, ...]:
    """Print what the run needs, when it saves, what it resumes from and which names may be mistyped; return it in a few
    lines. An unusual recipe or model for which one of these fails is no reason to refuse the run."""
    model = OmegaConf.select(config, "actor_rollout_ref.model.path")
    describers: dict[str, Callable[[], Footprint | Sequence[str]]] = {
        "footprint": lambda: (
            estimate_recipe(config) or (f"cannot estimate what the run needs: {model} has no known shape",)
        ),
        "schedule": lambda: (describe_schedule(config),),
        "resume": lambda: describe_resume(config),
        "notes": lambda: [f"note         {line}" for line in (*doubtful_names(config), describe_untested()) if line],
    }
    plan: list[str] = []
    for name, describe in describers.items():
        try:
            lines = describe()
        except Exception:
            logger.warning("could not describe the run: %s failed", name, exc_info=True)
            continue
        if lines:
            print(lines if isinstance(lines, Footprint) else "\n".join(lines), flush=True)
        plan += lines.brief if isinstance(lines, Footprint) else lines
    return tuple(plan)


def hand_to_ray_workers(*names: str) -> None:
    """Pass environment variables to the job's workers: those of a running cluster do not inherit them.

    `ray job submit` passes a job's environment to `ray.init` in the same variable; what is in it stays.
    """
    job_config = json.loads(os.environ.get(RAY_JOB_CONFIG, "{}"))
    env_vars = job_config.setdefault("runtime_env", {}).setdefault("env_vars", {})
    env_vars.update({name: os.environ[name] for name in names if name in os.environ})
    os.environ[RAY_JOB_CONFIG] = json.dumps(job_config)
    # Variables in the recipe's ray_kwargs.ray_init.runtime_env win, instead of raising a conflict.
    os.environ.setdefault("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1")
