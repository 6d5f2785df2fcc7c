"""Find out before a run starts what a resume would do. It goes on and says what changed, or is refused.

veRL would find out only after minutes, in a worker's traceback, or never: it silently keeps the checkpoint's learning
rate, and begins at step 0 if the checkpoint is gone.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from arpo_verl.config import Problems
from arpo_verl.errors import ConfigError, ReplayError
from arpo_verl.footprint import Model
from arpo_verl.plugin.recipe.footprint import model_folder, model_shape, training_steps
from arpo_verl.plugin.recipe.rules import Recipe
from arpo_verl.plugin.resume import (
    ResumeRecord,
    read_record,
    record_of,
    references_of,
    resumed_checkpoint,
    settings_of,
    step_of,
)
from arpo_verl.plugin.trainer_state import TrainerState
from arpo_verl.replay.config import REFUSE
from arpo_verl.replay.store.persistence import MANIFEST, check_fingerprint, read_manifest
from arpo_verl.untrusted import parse_json, printable, read_regular

_SHARDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}
"""Each name in `actor.checkpoint.load_contents`, and how the names of its files begin."""
_FSDP_VERSIONS = {"fsdp": 1, "fsdp2": 2}
_MOST_JSON_BYTES = 1 << 20
_MOST_LINES = 20
_MOST_NAMED = 5
_MOST_LOOKED_FOR = 10_000
"""Most missing files to list: a file name may claim a billion processes."""
_MOST_VALUE = 80
_OUR_DATASET = "pkg://arpo_verl.plugin.dataset"
_FINGERPRINTED = ("actor_rollout_ref.model.", "data.mm_processor_kwargs", "gui_agent.")
"""Prefixes of the options that stored successes depend on."""
_ACTOR, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"


class Effect(NamedTuple):
    """What follows if an option differs from the checkpoint's."""

    options: tuple[str, ...]
    """Names of options. One that ends in a dot stands for its whole section."""
    words: str
    refused: bool = False
    """Whether the run is refused; `words` then says what to do."""

    def concerns(self, option: str) -> bool:
        """Return whether it is about this option."""
        return any(option.startswith(name) if name.endswith(".") else option == name for name in self.options)


_OPTIMIZER = Effect(
    tuple(
        f"{_ACTOR}.optim.{name}"
        for name in ("lr", "weight_decay", "betas", "optimizer", "optimizer_impl", "override_optimizer_config")
    ),
    f"veRL would keep the checkpoint's; set it back, or begin with a fresh optimizer by adding, for this start "
    f"only, {_ACTOR}.checkpoint.load_contents=[model]",
    refused=True,
)
EFFECTS = (
    Effect(
        (f"{_ACTOR}.fsdp_config.fsdp_size",),
        "the checkpoint's weights are split in another way; set it back",
        refused=True,
    ),
    Effect(
        (f"{_MODEL}.lora_rank", f"{_MODEL}.target_modules", f"{_MODEL}.lora."),
        "the checkpoint's weights do not fit into such a model; set it back",
        refused=True,
    ),
    _OPTIMIZER,
    Effect(("data.shuffle", "data.seed", "data.dataloader_num_workers"), "the order of tasks begins anew"),
    Effect(("data.train_batch_size",), "an epoch has another number of steps"),
    Effect(("actor_rollout_ref.rollout.n",), "groups that were in flight keep their size"),
    Effect(
        ("trainer.v1.trainer_mode",),
        "`sync` drops unfinished rollouts, the other modes go on with them",
    ),
    Effect(
        (f"{_MODEL}.path",),
        "the weights still come from the checkpoint; tokenizer, processor and configuration come from here",
    ),
    Effect(
        tuple(f"gui_agent.{name}" for name in ("model_family", "language", "context", "harness"))
        + ("gui_agent.max_screenshots", "gui_agent.kept_screenshots", "data.mm_processor_kwargs.")
        + (f"{_MODEL}.tokenizer_path", f"{_MODEL}.custom_chat_template"),
        "the policy reads other conversations from now on, and successes stored before may not fit them",
    ),
    Effect(
        ("trainer.total_epochs", "trainer.total_training_steps"),
        "the run ends at another step, and a decaying learning rate changes with it",
    ),
)


@dataclass(frozen=True)
class Resumption:
    """A run that is about to continue from a checkpoint.

    Args:
        config: the composed recipe.
        checkpoint: the folder `global_step_N`.
    """

    config: DictConfig
    checkpoint: Path

    @classmethod
    def of_recipe(cls, config: DictConfig) -> Resumption | None:
        """Return what the recipe resumes; None if it starts at step 0, or names a checkpoint that does not exist.

        Raises:
            ConfigError: veRL's note of the newest checkpoint names one that does not exist.
        """
        checkpoint = resumed_checkpoint(TrainerState(config).resume)
        return cls(config, checkpoint) if checkpoint is not None and checkpoint.is_dir() else None

    @property
    def step(self) -> int:
        """The step after which the run continues."""
        return step_of(self.checkpoint)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, read by the names of its options."""
        return Recipe(self.config)

    @cached_property
    def saved(self) -> ResumeRecord | None:
        """The tasks and options that the checkpoint records; None if it has no record."""
        return read_record(self.checkpoint)

    @cached_property
    def now(self) -> ResumeRecord:
        """The same for this run. With another dataset than ours it has the saved tasks."""
        if self.recipe["data.custom_cls.path"] == _OUR_DATASET:
            from arpo_verl.plugin.dataset import training_rows  # it imports veRL

            return record_of(settings_of(self.config), training_rows(self.config.data))
        return ResumeRecord(self.saved.tasks if self.saved else (), settings_of(self.config))

    @property
    def way_out(self) -> str:
        """What to do with a checkpoint that this recipe cannot continue from."""
        return f"begin a new run with its weights: arpo-verl train RECIPE run_dir=NEW --weights-from {self.checkpoint}"

    def changes(self) -> Iterator[tuple[str, str, str, Effect | None]]:
        """Yield each option that changed: its name, old value, new value, and what that means."""
        references = references_of(self.config)
        for option, old, new in self.saved.changed(self.now) if self.saved else ():
            if any(option == name or option.startswith(f"{name}.") for name in references):
                continue  # the option that it refers to is listed anyway
            yield option, old, new, next((effect for effect in EFFECTS if effect.concerns(option)), None)


def check_resume(config: DictConfig) -> None:
    """Refuse a resume that would fail, or do something other than the recipe says.

    Raises:
        ArpoError: lists all problems, each with what to do.
    """
    resumption = Resumption.of_recipe(config)
    if resumption is None:
        return
    problems = Problems()
    for check in (_check_shards, _check_files, _check_policy, _check_options, _check_end, _check_store):
        with problems.gather():
            check(resumption)
    problems.raise_all()


def describe_resume(config: DictConfig) -> tuple[str, ...]:
    """Return as lines what a run continues from, and all that changed since; empty if it starts at step 0.

    Raises:
        ArpoError: in the same cases as `check_resume`.
    """
    resumption = Resumption.of_recipe(config)
    if resumption is None:
        return ()
    described = (_describe_order, _describe_tasks, _describe_options)
    lines = [f"  {line}" for describe in described for line in describe(resumption)]
    if training_steps(config) == resumption.step:
        lines.append("  nothing is left to train; for more steps raise trainer.total_epochs")
    if resumption.saved is not None and not lines:
        lines = ["  nothing of the recipe has changed since"]
    left = len(lines) - _MOST_LINES
    lines = lines if left <= 0 else [*lines[:_MOST_LINES], f"  and {left} more changes"]
    return (f"goes on      after step {resumption.step}, from {resumption.checkpoint}", *lines)


def _describe_order(resumption: Resumption) -> Iterator[str]:
    if not (resumption.checkpoint / "data.pt").is_file():
        yield "it has no data.pt: the order of tasks begins anew"
    elif resumption.saved is None:
        yield "it does not record its tasks and options: the order of tasks begins anew"
    elif resumption.saved.tasks != resumption.now.tasks:
        yield f"{resumption.saved.order_change(resumption.now)}: the order of tasks begins anew"


def _describe_tasks(resumption: Resumption) -> Iterator[str]:
    if resumption.saved is not None and (changes := resumption.saved.task_changes(resumption.now)):
        yield f"{changes}: what was solved of these tasks before is not replayed"


def _describe_options(resumption: Resumption) -> Iterator[str]:
    for option, old, new, effect in resumption.changes():
        before, after = _short(old), _short(new)  # long values are cut, and may look the same
        name = _short(option)
        change = f"{name} {before} -> {after}" if before != after else f"{name} changed"
        yield f"{change}: {effect.words}" if effect else change
    try:
        _check_fingerprint(resumption)
    except ReplayError as error:
        yield f"its successes are ignored, as replay.on_bad_store says: {error}"


def _short(value: str) -> str:
    text = printable(value)
    return text if len(text) <= _MOST_VALUE else f"{text[:_MOST_VALUE]}..."


# --- The checks ------------------------------------------------------------------------------------------------------


def _check_shards(resumption: Resumption) -> None:
    """Check that as many processes read FSDP's shards as wrote them, with the same version of FSDP."""
    checkpoint, recipe = resumption.checkpoint, resumption.recipe
    ranks = _ranks(checkpoint, recipe)
    if ranks != recipe.gpus:
        raise ConfigError(
            f"trainer.nnodes * trainer.n_gpus_per_node must be {ranks}, the processes that wrote {checkpoint}, got "
            f"{recipe.gpus}; set it back, or {resumption.way_out}"
        )
    saved = _read_json(checkpoint / "actor" / "fsdp_config.json").get("FSDP_version")
    version = _FSDP_VERSIONS.get(str(recipe["actor.strategy"]))
    if saved in (1, 2) and version is not None and saved != version:
        raise ConfigError(
            f"{_ACTOR}.strategy must be {'fsdp2' if saved == 2 else 'fsdp'}, which wrote {checkpoint}, got "
            f"{recipe['actor.strategy']}; set it back, or {resumption.way_out}"
        )


def _ranks(checkpoint: Path, recipe: Recipe) -> int:
    """Return how many processes wrote the weights, by the names of the files; by default, the recipe's number."""
    files = (checkpoint / "actor").glob("model_world_size_*_rank_*.pt")
    found = {match[1] for file in files if (match := re.search(r"_world_size_([0-9]{1,9})_", file.name))}
    return recipe.gpus if not found or str(recipe.gpus) in found else max(map(int, found))


def _check_files(resumption: Resumption) -> None:
    """Check that all files that veRL opens exist and are complete."""
    damaged = list(islice(_damaged(resumption.checkpoint, resumption.recipe), _MOST_LOOKED_FOR))
    if not damaged:
        return
    left = len(damaged) - _MOST_NAMED
    named = ", ".join(damaged[:_MOST_NAMED]) + (f" and {left} more" if left > 0 else "")
    siblings = sorted(resumption.checkpoint.parent.glob("global_step_*"), key=step_of, reverse=True)
    earlier = (other for other in siblings if 0 <= step_of(other) < resumption.step)
    whole = next((other for other in earlier if not any(_damaged(other, resumption.recipe))), None)
    remedy = (
        "no earlier one is complete: trainer.resume_mode=disable begins anew"
        if whole is None
        else f"take an earlier one: trainer.resume_mode=resume_path trainer.resume_from_path={whole}"
    )
    raise ConfigError(
        f"a checkpoint must be complete to resume from, but in {resumption.checkpoint} these are missing or cut off: "
        f"{named}; copy it again, or {remedy}"
    )


def _damaged(checkpoint: Path, recipe: Recipe) -> Iterator[str]:
    """Yield the names of the files that veRL opens and that are missing or cut off."""
    contents = [_SHARDS[name] for name in recipe["actor.checkpoint.load_contents"] or () if name in _SHARDS]
    ranks = _ranks(checkpoint, recipe)
    for part in ("actor", "critic") if recipe.has_critic else ("actor",):
        for kind in contents:
            for rank in range(ranks):
                name = f"{part}/{kind}_world_size_{ranks}_rank_{rank}.pt"
                if not _is_whole(checkpoint / name):
                    yield name
    if (checkpoint / "data.pt").exists() and not _is_whole(checkpoint / "data.pt"):
        yield "data.pt (or remove it: the order of tasks then begins anew)"
    queue = checkpoint / "transfer_queue"
    if recipe.mode != "sync" and queue.exists():
        for name in ("metadata.json", "controller_state.pkl"):
            if not (queue / name).is_file():
                yield f"transfer_queue/{name} (or remove transfer_queue: what was in flight is then lost)"


def _is_whole(file: Path) -> bool:
    """Return whether torch's archive is complete: its table of contents is at its end."""
    return file.is_file() and zipfile.is_zipfile(file)


def _check_policy(resumption: Resumption) -> None:
    """Check that the checkpoint's weights fit into the recipe's model."""
    path = str(resumption.recipe["model.path"])
    saved = _read_json(resumption.checkpoint / "actor" / "huggingface" / "config.json")
    different = ", ".join(_differences(saved, path)) if saved else ""
    if different:
        raise ConfigError(
            f"{_MODEL}.path must be a model of the checkpoint's shape, got {path}, but {resumption.checkpoint} has "
            f"{different}; name the model that it was trained from, or another run_dir"
        )


def _differences(saved: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield how the model of a saved `config.json` differs from the one at `path`; nothing if that is not known."""
    folder, here = model_folder(path), model_shape(path)
    family = _read_json(folder / "config.json").get("model_type") if folder else None
    there = None if here is None else _shape(saved, here.num_parameters)
    if family is not None and saved.get("model_type") != family:
        yield f"family {_short(str(saved.get('model_type')))} instead of {family}"
    elif here is not None and there is not None:
        for name in (field.name for field in fields(Model)):
            if getattr(there, name) != getattr(here, name):
                yield f"{name} {_short(str(getattr(there, name)))} instead of {getattr(here, name)}"


def _shape(config: Mapping[str, Any], num_parameters: int) -> Model | None:
    try:
        return Model.of_config(config, num_parameters)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # another family, or damaged
        return None


def _check_options(resumption: Resumption) -> None:
    """Check the options that veRL would ignore, or fail on after minutes."""
    problems = Problems()
    fresh = set(resumption.recipe["actor.checkpoint.load_contents"] or ()) <= {"model"}
    for option, old, new, effect in resumption.changes():
        if effect is None or not effect.refused or (fresh and effect is _OPTIMIZER):
            continue
        if "not given" not in (old, new):  # otherwise it comes from another veRL, or from a stranger's file
            problems.errors.append(
                ConfigError(
                    f"{_short(option)} must be {_short(old)} to go on from {resumption.checkpoint}, got {_short(new)}: "
                    f"{effect.words}; or {resumption.way_out}"
                )
            )
    problems.raise_all()


def _check_end(resumption: Resumption) -> None:
    """Refuse a run that is past its end: it would train nothing and exit with 0."""
    steps = training_steps(resumption.config)
    if steps is not None and resumption.step > steps and not resumption.recipe["trainer.val_only"]:
        raise ConfigError(
            f"the run must end after step {resumption.step}, at which {resumption.checkpoint} was saved, but its "
            f"tasks, data.train_batch_size, trainer.total_epochs and trainer.total_training_steps end it after step "
            f"{steps}; raise trainer.total_epochs, or {resumption.way_out}"
        )


def _check_store(resumption: Resumption) -> None:
    if TrainerState(resumption.config).replay.on_bad_store == REFUSE:
        _check_fingerprint(resumption)


def _check_fingerprint(resumption: Resumption) -> None:
    """Check that the checkpoint's successes fit the tokenizer, processor and prompt, as the sampler will.

    Raises:
        ReplayError: they do not fit, or the store cannot be read.
    """
    state, store = TrainerState(resumption.config), resumption.checkpoint / "replay"
    if not state.replay.enable or not (store / MANIFEST).is_file() or model_folder(state.policy.processor) is None:
        return
    changed = [option for option, *_ in resumption.changes()]
    if resumption.saved is not None and not any(option.startswith(_FINGERPRINTED) for option in changed):
        return
    from arpo_verl.plugin.model_inputs import ModelInputs
    from arpo_verl.replay.fingerprint import model_fingerprint  # torch, and veRL

    inputs = ModelInputs.load(state.policy, state.mm_processor_kwargs)
    fingerprint = model_fingerprint(inputs.tokenizer, inputs.processor, state.mm_processor_kwargs, state.agent)
    check_fingerprint(store, read_manifest(store), fingerprint)


def _read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object from a small file; empty if there is none."""
    try:
        value = parse_json(read_regular(file.resolve(), _MOST_JSON_BYTES))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
