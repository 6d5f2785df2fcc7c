"""Check everything in a recipe that needs neither Ray nor a model nor a desktop, before any of them starts."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from arpo_verl.agent.harness.loading import load_program
from arpo_verl.agent.models.family import FULL, check_model_type, check_trainable, read_model_type
from arpo_verl.agent.rollout.config import GuiAgentConfig, check_lengths
from arpo_verl.agent.rollout.vision import ImageGeometry, check_pixel_limits
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.factory import environment_factory
from arpo_verl.desktops.provider_checks import check_provider
from arpo_verl.desktops.providers import PROVIDERS
from arpo_verl.engines.footprint import Model, screenshot_tokens, sequence_tokens
from arpo_verl.lib.config import Checks, ConfigT, Problems, build_config, did_you_mean, require
from arpo_verl.lib.files import check_place
from arpo_verl.plugin.recipe.footprint import model_folder, model_shape, read_run
from arpo_verl.plugin.recipe.options import Recipe, longest_instruction
from arpo_verl.plugin.recipe.resuming import check_resume
from arpo_verl.plugin.recipe.silent import check_silent
from arpo_verl.plugin.recipe.values import check_by_verl, check_filled, check_values, is_default, is_given
from arpo_verl.plugin.settings import PolicyFiles, episode_weight_of, plain_section, task_selection
from arpo_verl.plugin.trainer_state import TrainerState
from arpo_verl.replay.config import SAMPLERS, ReplayConfig, check_filter, check_sampler
from arpo_verl.replay.methods import load_method, method_that_replaces
from arpo_verl.replay.store.persistence import check_fingerprint, read_manifest
from arpo_verl.tasks.selection import TaskSelection, load_selected_tasks
from arpo_verl.tasks.validation import check_tasks_run_here
from arpo_verl.versions import pip_install, require_verl

# Paths in a recipe: those that it writes to, and those that it may read on this machine.
_WRITTEN = (
    "run_dir",
    "trainer.default_local_dir",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
    "gui_agent.trajectory_dir",
    "environment.status_file",
)
_READ = ("actor_rollout_ref.model.path", "data.train_files", "data.val_files", "replay.seed_from")
# Small policies that recipes name -> the command that makes each.
_MADE_HERE = {
    ".cache/policy": "python -m arpo_verl.tools.policy embedded --out .cache/policy",
    ".cache/seeing": "python -m arpo_verl.tools.policy seeing --out .cache/seeing",
}
# veRL's loggers that need a package of their name, with the variables and files that any of can log them in.
_LOGGERS: dict[str, tuple[str, ...]] = {
    "wandb": ("WANDB_API_KEY", "WANDB_MODE", "NETRC", "~/.netrc", "~/.config/wandb/settings", "wandb/settings"),
    "swanlab": ("SWANLAB_API_KEY", "SWANLAB_MODE", "~/.swanlab"),
    "volcengine_ml_platform": ("VOLC_ACCESS_KEY_ID",),
    "clearml": ("CLEARML_API_ACCESS_KEY", "CLEARML_CONFIG_FILE", "CLEARML_OFFLINE_MODE", "~/clearml.conf"),
    "mlflow": (),
    "tensorboard": (),
    "trackio": (),
}
_PACKAGES = {"tracking": "wandb", "vemlp_wandb": "volcengine_ml_platform"}
_ADD_ARPO = "add `- arpo` after ppo_trainer to its defaults, or +plugin=arpo to the command line"
# `ray start` writes here which cluster this machine is part of.
RAY_CLUSTER_FILE = Path("/tmp/ray/ray_current_cluster")


def check_recipe(config: DictConfig, recipe: Path | None = None, overrides: Sequence[str] = ()) -> None:
    """Check a composed recipe, and its file with the command line's options, if they are known.

    Raises:
        ArpoError: lists all problems, each with what was expected, what came and what to do.
    """
    require_verl()
    checks = Checks()
    if recipe is not None:
        checks.run(check_filled, config, recipe, overrides)
    model: Model | None = None
    uses_fsdp = config.get("model_engine", "dp") == "dp"
    if uses_fsdp:
        checks.run(check_values, config)
        checks.run(check_by_verl, config)
    else:  # the other checks do not know the sections of another engine
        expected = "dp, which is FSDP: we never tried rows of screenshots with veRL's other engines"
        checks.run(require, False, "model_engine", expected, config.model_engine, "leave it out")
    environment = checks.run(_section_of, EnvironmentConfig, "environment", config)
    agent = checks.run(_section_of, GuiAgentConfig, "gui_agent", config)
    replay = checks.run(_section_of, ReplayConfig, "replay", config)
    selection = checks.run(lambda: task_selection(config.data))
    for check in (_check_paths, _check_places, _check_ray_folder, _check_loggers):
        checks.run(check, config)
    sampler = checks.run(lambda: str(config.trainer.v1.sampler.custom_sampler.name))
    checks.run(lambda: check_sampler(sampler or "", config.trainer.v1.trainer_mode))
    checks.run(lambda: check_pixel_limits(config.data.get("mm_processor_kwargs") or {}))
    checks.run(lambda: episode_weight_of(config.algorithm))
    if uses_fsdp:
        model = checks.run(model_shape, str(OmegaConf.select(config, "actor_rollout_ref.model.path")))
        checks.run(check_silent, Recipe(config))
        checks.run(check_resume, config)
    if sampler in SAMPLERS:
        checks.run(lambda: check_filter(config.algorithm.get("filter_groups") or {}))
        checks.run(lambda: TrainerState(config).sampler)
    if replay is not None and replay.enable:
        checks.run(_check_method, config, replay)
    if replay is not None and replay.enable and replay.seed_from is not None:
        checks.run(read_manifest, replay.seed_from)
    if agent is not None:
        checks.run(_check_image_limit, config, agent)
        if agent.harness is not None:  # it has prompts and actions of its own
            checks.run(load_program, agent)
        else:
            checks.run(lambda: agent.family.opening("", agent.language, ()))  # has it the model's official prompt?
            checks.run(_check_family, config, agent, model)
            checks.run(_check_row, config, model, agent)
    if environment is not None:
        checks.run(_check_desktops, config, environment)
    if checks.run(_is_local_model, config) and agent is not None:
        checks.run(_check_lengths, config, agent, environment)
        checks.run(_check_seeds, config, agent, replay)
    elif model is not None and (agent is None or agent.harness is None):
        checks.run(_check_first_turn, config, model)
    if selection is not None:
        checks.run(_check_tasks, config, selection, environment)
    checks.tell_defaults(lambda name: is_default(name, OmegaConf.select(config, name)))
    checks.raise_all()


def joins_cluster(config: DictConfig) -> bool:
    """Return whether the run joins a running Ray, as `ray.init` would find it, instead of starting one."""
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address") or os.environ.get("RAY_ADDRESS")
    return address != "local" and (bool(address) or RAY_CLUSTER_FILE.exists())


def _check_paths(config: DictConfig) -> None:
    """Require absolute paths on a running cluster: actors work where `ray start` ran, the driver in its own folder."""
    require("run_dir" in config, "run_dir", "the run's folder", None, _ADD_ARPO)
    if not joins_cluster(config):
        return
    written = [(name, OmegaConf.select(config, name)) for name in _WRITTEN]
    named = [(name, OmegaConf.select(config, name, throw_on_missing=False)) for name in _READ]
    paths = [(name, path) for name, value in named for path in (value if OmegaConf.is_list(value) else [value])]
    read = [(name, path) for name, path in paths if isinstance(path, str) and Path(path).exists()]
    # A `~` counts as relative: what writes there would create a folder of that name.
    relative = [f"{name}={path}" for name, path in written + read if path is not None and not Path(path).is_absolute()]
    run_dir = Path(config.run_dir).expanduser().absolute()
    require(
        not relative,
        "every path of a run that joins a running Ray cluster",
        "absolute",
        " ".join(relative),
        f"its actors work where `ray start` ran; set run_dir={run_dir}, on storage that all nodes share, and the "
        "other paths likewise",
    )


def _check_places(config: DictConfig) -> None:
    """Check now whether the run can write where it will write later, such as a checkpoint after hours."""
    if joins_cluster(config):
        return  # other nodes write some of it
    problems = Problems()
    for name in _WRITTEN:
        place = OmegaConf.select(config, name)
        if place is not None and "://" not in str(place):
            with problems.gather():
                is_file = name == "environment.status_file"
                check_place(name, Path(str(place)).parent if is_file else Path(str(place)))
    problems.raise_all()


def _check_ray_folder(config: DictConfig) -> None:
    """Check that Ray's sockets fit: their paths are 68 bytes longer than this folder's, and Linux allows 107."""
    name = "RAY_TMPDIR" if "RAY_TMPDIR" in os.environ else "TMPDIR"
    folder = os.environ.get(name, "")
    if not joins_cluster(config) and not OmegaConf.select(config, "ray_kwargs.ray_init._temp_dir"):
        fits = len(os.fsencode(folder)) <= 39
        require(fits, name, "at most 39 bytes long, since Ray makes sockets below it", folder, "set it to /tmp")


def _check_loggers(config: DictConfig) -> None:
    """Look now for each logger's package and key, since veRL does only when the models are loaded."""
    from verl.utils.tracking import Tracking

    problems, loggers = Problems(), OmegaConf.select(config, "trainer.logger") or ()
    known = [*Tracking.supported_backend, "tracking"]  # the last is an older name that veRL still takes
    for logger in [loggers] if isinstance(loggers, str) else loggers:
        module = _PACKAGES.get(logger, logger)
        with problems.gather():
            hint = did_you_mean(logger, known).removeprefix("; ") or "correct it"
            require(logger in known, "trainer.logger", f"of {', '.join(known)}", logger, hint)
            if module in _LOGGERS and not joins_cluster(config):  # its nodes have packages of their own
                keys = _LOGGERS[module]
                given = {*os.environ, *(OmegaConf.select(config, "ray_kwargs.ray_init.runtime_env.env_vars") or {})}
                has_key = not keys or any(key in given or Path(key).expanduser().exists() for key in keys)
                remedy = "".join((f"{pip_install(module)}, ", *(f"set {key}, " for key in keys[:1]), "or leave it out"))
                ready = has_key and importlib.util.find_spec(module) is not None
                require(ready, "trainer.logger", "of loggers that are installed and logged in", logger, remedy)
    problems.raise_all()


def _desktops_are_here(config: DictConfig, environment: EnvironmentConfig) -> bool:
    """Return whether this process sees what the desktops' hosts see. If not, each host checks at its first boot."""
    return not joins_cluster(config) and config.trainer.nnodes == 1 and environment.py_executable is None


def _check_desktops(config: DictConfig, environment: EnvironmentConfig) -> None:
    if _desktops_are_here(config, environment):
        environment_factory(environment)
        if environment.provider in PROVIDERS:
            check_provider(environment)


def _check_family(config: DictConfig, agent: GuiAgentConfig, model: Model | None) -> None:
    """Compare the family with the model, if its config.json is on this machine or its name is known."""
    check_trainable(agent.model_family)
    path = str(OmegaConf.select(config, "actor_rollout_ref.model.path"))
    folder = model_folder(path)
    model_type = read_model_type(folder) if folder is not None else model.model_type if model is not None else None
    check_model_type(agent.model_family, model_type, path)


def _check_tasks(config: DictConfig, selection: TaskSelection, environment: EnvironmentConfig | None) -> None:
    """Check both lists of tasks and report the problems of both."""
    problems = Problems()
    for name in ("data.train_files", "data.val_files"):
        with problems.gather():
            if is_given(config, name):
                tasks = load_selected_tasks(OmegaConf.select(config, name), selection)
                if environment is not None:
                    check_tasks_run_here(tasks, environment)
    problems.raise_all()


def _section_of(cls: type[ConfigT], name: str, config: DictConfig) -> ConfigT:
    require(name in config, f"the recipe's section `{name}`", "present", "no section", _ADD_ARPO)
    return build_config(cls, name, plain_section(name, config[name]))


def _check_method(config: DictConfig, replay: ReplayConfig) -> None:
    """Require what the replay method needs of estimator and engine."""
    estimator = config.algorithm.adv_estimator
    if estimator != "replay_grpo":
        method_that_replaces(replay, f"with algorithm.adv_estimator={estimator}", "or take replay_grpo")
    records = config.actor_rollout_ref.rollout.calculate_log_probs
    name = "actor_rollout_ref.rollout.calculate_log_probs"
    needs = load_method(replay).needs_log_probs
    require(bool(records) or not needs, name, f"true with replay.method={replay.method}", records)


def _check_image_limit(config: DictConfig, agent: GuiAgentConfig) -> None:
    """Check the limit here: veRL passes it on unchecked, and vLLM refuses the first prompt with too many images."""
    if config.actor_rollout_ref.rollout.name != "vllm":
        return
    option = "actor_rollout_ref.rollout.limit_images"
    limit = OmegaConf.select(config, option)
    if not limit:  # if it is set, veRL uses it instead of the engine's own limits
        option = "actor_rollout_ref.rollout.engine_kwargs.vllm.limit_mm_per_prompt"
        limits = OmegaConf.select(config, option)
        if not OmegaConf.is_dict(limits) or "image" not in limits:
            return  # vLLM's own limit is 999
        limit = limits["image"].get("count", 999) if OmegaConf.is_dict(limits["image"]) else limits["image"]
        option += ".image"
    require(
        isinstance(limit, int) and limit >= agent.row_screenshots,
        option,
        f"at least the {agent.row_screenshots} screenshots of {'an episode' if agent.context == FULL else 'a row'}",
        limit,
        "leave it out, or set it to ${gui_agent." + ("max_steps}" if agent.context == FULL else "max_screenshots}"),
    )


def _check_row(config: DictConfig, model: Model | None, agent: GuiAgentConfig) -> None:
    """Check that a row of `gui_agent.context` can hold all its screenshots. A row with long replies shows fewer, but
    limits that never leave room for all are a mistake."""
    if model is None or agent.context == FULL:
        return
    run = read_run(config, model)
    tokens = sequence_tokens(run, run.max_screenshots, run.max_reply_tokens)
    require(
        tokens <= run.max_sequence_tokens,
        "data.max_prompt_length + data.max_response_length",
        f"at least {tokens}, our estimate for a row with {run.max_screenshots} screenshots and one reply",
        run.max_sequence_tokens,
        "raise data.max_response_length, or lower gui_agent.max_screenshots or the processor's max_pixels",
    )


def _is_local_model(config: DictConfig) -> bool:
    """Return whether the policy is on this machine. The model hub resolves a name such as `org/model`."""
    if not is_given(config, "actor_rollout_ref.model.path"):
        return False
    policy, problems = PolicyFiles.of_recipe(config), Problems()
    places = {str(policy.processor): "tokenizer_path", str(policy.path): "path"}
    are_here = True
    for place, name in places.items():
        path = Path(place).expanduser()
        if not path.joinpath("config.json").is_file():
            is_path = place.startswith((".", "/", "~"))
            with problems.gather():
                name = f"actor_rollout_ref.model.{name}"
                require(not is_path, name, "a folder with a config.json", str(path), _how_to_make(path))
            are_here = False
    problems.raise_all()
    return are_here


def _how_to_make(policy: Path) -> str:
    """Return the command that makes one of our small policies, or what else to do."""
    command = next((line for folder, line in _MADE_HERE.items() if policy.parts[-2:] == Path(folder).parts), "")
    return f"make it: {command}" if command else "name the folder that you downloaded the model to"


def _check_lengths(config: DictConfig, agent: GuiAgentConfig, environment: EnvironmentConfig | None) -> None:
    if environment is None:
        return
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(Path(PolicyFiles.of_recipe(config).processor).expanduser())
    geometry = ImageGeometry.from_processor(processor, config.data.get("mm_processor_kwargs"))
    if agent.harness is not None:
        return
    shown, problems = geometry.num_tokens(environment.screen_size), Problems()
    with problems.gather():
        check_lengths(agent, config.data.max_response_length, shown)
    messages = agent.family.opening(longest_instruction(config), agent.language, ())
    words = "".join(part.get("text", "") for message in messages for part in message["content"])
    with problems.gather():
        _require_first_turn(config, shown, len(processor.tokenizer(words)["input_ids"]))
    problems.raise_all()


def _check_first_turn(config: DictConfig, model: Model) -> None:
    """Check without the tokenizer, which is not on this machine. Count only half of the prompt's estimated tokens."""
    run = read_run(config, model)
    _require_first_turn(config, screenshot_tokens(model, run.image), run.instruction_tokens // 2)


def _require_first_turn(config: DictConfig, shown: int, words: int) -> None:
    require(
        config.data.max_prompt_length >= shown + words,
        "data.max_prompt_length",
        f"at least {shown + words}, the tokens of the first turn: a screenshot ({shown}) and the prompt",
        config.data.max_prompt_length,
        "raise it, or lower the processor's max_pixels",
    )


def _check_seeds(config: DictConfig, agent: GuiAgentConfig, replay: ReplayConfig | None) -> None:
    """Compare the stored successes with the model, as the sampler will, but before anything starts."""
    if replay is None or not replay.enable or replay.seed_from is None:
        return
    from arpo_verl.plugin.model_inputs import ModelInputs
    from arpo_verl.replay.fingerprint import model_fingerprint

    kwargs = dict(config.data.get("mm_processor_kwargs") or {})
    inputs = ModelInputs.load(PolicyFiles.of_recipe(config), kwargs)
    fingerprint = model_fingerprint(inputs.tokenizer, inputs.processor, kwargs, agent)
    check_fingerprint(replay.seed_from, read_manifest(replay.seed_from), fingerprint)
