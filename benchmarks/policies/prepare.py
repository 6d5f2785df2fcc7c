"""From tasks to a policy that RL can start from; made once, and kept while nothing that it depends on changes."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from arpo_verl.config import check_fields, number, require, whole
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.files import replacing_directory
from arpo_verl.models.family import load_family
from arpo_verl.records.recorded import RecordedEpisode, read_episodes
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.vision import ImageGeometry
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.expert import expert_replies
from arpo_verl.tasks.validation import check_tasks_run_here
from arpo_verl.types import Task
from policies.architecture import MAX_PIXELS, MERGE_SIZE, MIN_PIXELS, PATCH_SIZE, PolicySize
from policies.demonstrations import collect_demonstrations, save_demonstrations

if TYPE_CHECKING:
    from policies.warm_start import WarmStartResult

logger = logging.getLogger(__name__)

# Raise it when the code changes what the same settings give: finished policies are then made anew.
_FORMAT = 1
REPORT = "warm_start.json"
FAMILY = "small"
_AGENT = GuiAgentConfig(max_steps=1000, max_screenshots=None, model_family=FAMILY)
"""The section `gui_agent` that demonstrations are tokenized by: none is too long for it."""


@dataclass(frozen=True)
class PolicyConfig:
    """What the finished policy depends on, beside the tasks and the expert's scripts."""

    seed: int = 0
    """Of the weights and of the order of demonstrations."""
    tasks: str = "embedded"
    """As `load_tasks` takes it; the expert must know each of them."""
    target_success: Annotated[
        float, number(lambda x: 0 < x < 1, "between 0 and 1", "0.36 leaves RL something to learn")
    ] = 0.36
    """See `WarmStartConfig.target_success`."""
    floor: float = 0.0
    """See `WarmStartConfig.floor`."""
    num_desktops: Annotated[int, whole(1, "at least 1")] = 3
    """Desktops that demonstrations are played on at once."""
    size: PolicySize = field(default_factory=PolicySize)

    def __post_init__(self) -> None:
        check_fields(self)
        ok = 0 <= self.floor <= self.target_success
        require(ok, "floor", f"from 0 to target_success ({self.target_success:g})", self.floor)


@dataclass(frozen=True)
class PreparedPolicy:
    """A finished policy's folder, what `warm_start.json` in it says, and whether it was there already."""

    directory: Path
    report: dict[str, Any]
    reused: bool


def prepare_policy(out_dir: Path | str, settings: PolicyConfig) -> PreparedPolicy:
    """Make the warm-started policy in `out_dir`, unless it is there, made by the same settings, tasks and scripts.

    Demonstrations are kept beside it, so that another seed or target needs no desktop.

    Raises:
        TaskError: a task is unusable here, unknown to the expert, or not solved by its script.
        DesktopError: the desktops kept failing.
        ConfigError: `out_dir` is a folder that holds something else.
        ReplayError: the demonstrations beside it cannot be read; remove their folder.
    """
    out_dir = Path(out_dir)
    tasks = load_tasks(settings.tasks)
    key = _policy_key(settings, tasks)
    report = _read_report(out_dir)
    if report is not None and report.get("key") == key:
        return PreparedPolicy(out_dir, report, reused=True)
    foreign = out_dir.exists() and report is None and any(out_dir.iterdir())
    require(not foreign, "--out", "a new folder, an empty one, or one made by this command", str(out_dir))
    demonstrations = _demonstrations(out_dir, settings, tasks)
    return PreparedPolicy(out_dir, _train(out_dir, settings, demonstrations, key), reused=False)


def _train(
    out_dir: Path, settings: PolicyConfig, demonstrations: Sequence[RecordedEpisode], key: str
) -> dict[str, Any]:
    """Build, warm-start and write the policy; returns its report."""
    from arpo_verl.plugin.settings import load_processor
    from policies.build import build_processor, corpus_tokenizer, random_model, save_policy
    from policies.sequences import SequenceBuilder
    from policies.warm_start import WarmStartConfig, imitate

    tokenizer = corpus_tokenizer(_corpus(demonstrations))
    model = random_model(tokenizer, settings.seed, settings.size)
    with replacing_directory(out_dir) as scratch:
        save_policy(scratch, model, build_processor(tokenizer))
        builder = SequenceBuilder(load_processor(scratch), _AGENT)
        sequences = [builder.build(demonstration) for demonstration in demonstrations]
        config = WarmStartConfig(settings.target_success, settings.floor, seed=settings.seed)
        result = imitate(model, builder.images, sequences, config)
        model.save_pretrained(scratch)
        report = _report(settings, result, key, sum(p.numel() for p in model.parameters()))
        (scratch / REPORT).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def _report(settings: PolicyConfig, result: WarmStartResult, key: str, num_parameters: int) -> dict[str, Any]:
    return {
        "key": key,
        "settings": dataclasses.asdict(settings),
        "num_parameters": num_parameters,
        "epochs": result.epochs,
        "loss": result.loss,
        "mean_success": result.mean_success,
        "success_by_task": dict(result.success_by_task),
    }


def _corpus(demonstrations: Sequence[RecordedEpisode]) -> list[str]:
    texts = [part["text"] for message in _prompt() for part in message["content"]]
    for demonstration in demonstrations:
        texts += [demonstration.instruction, *demonstration.replies]
    # Twice: a tokenizer merges what it has seen at least twice, and each of these texts comes again and again.
    return texts * 2


# --- Demonstrations ----------------------------------------------------------------------------------------------


def _demonstrations(out_dir: Path, settings: PolicyConfig, tasks: Sequence[Task]) -> list[RecordedEpisode]:
    environment = EnvironmentConfig(num_desktops=settings.num_desktops)
    geometry = _geometry()
    key = _hash(_task_facts(tasks), dataclasses.asdict(geometry))
    folder = out_dir.absolute().with_name(f"{out_dir.name}-demonstrations-{key[:12]}")
    if folder.exists():
        logger.info("demonstrations are taken from %s", folder)
    else:
        check_tasks_run_here(tasks, environment)
        save_demonstrations(folder, collect_demonstrations(tasks, expert_replies, environment, geometry.image_size))
    place = {task.task_id: number for number, task in enumerate(tasks)}
    return sorted(read_episodes(folder), key=lambda episode: place[episode.task_id])


def _geometry() -> ImageGeometry:
    """As `ImageGeometry.from_processor` will read it from the processor that is about to be built."""
    return ImageGeometry(PATCH_SIZE * MERGE_SIZE, MIN_PIXELS, MAX_PIXELS)


# --- What was made already ---------------------------------------------------------------------------------------


def _prompt() -> list[dict[str, Any]]:
    """The conversation's opening without its last message, the screenshot."""
    return load_family(FAMILY).opening("", "English", ())[:-1]


def _policy_key(settings: PolicyConfig, tasks: Sequence[Task]) -> str:
    values = dataclasses.asdict(settings)
    # How fast demonstrations come, and where the tasks lie, change nothing.
    del values["num_desktops"], values["tasks"]
    return _hash(_FORMAT, values, _task_facts(tasks), _prompt(), _versions())


def _task_facts(tasks: Sequence[Task]) -> list[Any]:
    return [[task.task_id, dict(task.spec), repr(expert_replies(task.task_id))] for task in tasks]


def _versions() -> dict[str, str | None]:
    """Of the packages whose change changes the files."""
    found: dict[str, str | None] = {}
    for package in ("torch", "transformers", "tokenizers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _hash(*values: Any) -> str:
    return sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def _read_report(directory: Path) -> dict[str, Any] | None:
    try:
        report: dict[str, Any] = json.loads((directory / REPORT).read_text(encoding="utf-8"))
        return report
    except (OSError, json.JSONDecodeError):
        return None
