"""Bad input is told before anything starts: what was expected, what came, what to do."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.composed import compose_recipe
from support.policies.build import build_policy

from arpo_verl import versions
from arpo_verl.agent.models import official_words
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.errors import ConfigError, MissingDependencyError, ReplayError, SeveralErrors, TaskError
from arpo_verl.lib.removed_options import REMOVED
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.plugin.recipe import checks
from arpo_verl.plugin.recipe.checks import check_recipe
from arpo_verl.plugin.settings import PolicyFiles
from arpo_verl.replay.fingerprint import model_fingerprint
from arpo_verl.replay.store.persistence import save_store
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.tasks.loader import shipped_file

RECIPES = ROOT / "recipes"

pytestmark = pytest.mark.desktop


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    return build_policy(tmp_path_factory.mktemp("policy") / "policy")


@pytest.fixture
def check(policy, monkeypatch, tmp_path):
    """Check the recipe with these overrides, where no demo has been before."""
    monkeypatch.chdir(tmp_path)

    def check_with(*overrides: str) -> None:
        few = [f"data.{split}_files={shipped_file('dialog-confirm-yes')}" for split in ("train", "val")]
        few.append("+data.tasks.repeat=8")  # a step's
        check_recipe(compose_recipe("embedded", f"actor_rollout_ref.model.path={policy}", *few, *overrides))

    return check_with


def test_the_shipped_recipe_passes(check):
    check()


@pytest.mark.parametrize("name", sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem != "arpo"))
def test_every_recipe_passes_with_its_tasks_and_its_policy_there(name, policy, monkeypatch, tmp_path):
    monkeypatch.setattr(checks, "check_provider", lambda _: None)  # Docker and its virtual machine
    monkeypatch.setattr(checks, "RAY_CLUSTER_FILE", tmp_path / "none")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    needed = []
    if name.startswith("osworld"):
        needed = [f"data.{split}_files={shipped_file('dialog-confirm-yes')}" for split in ("train", "val")]
        needed.append("+data.tasks.repeat=16")
    elif name != "gpu_smoke":
        needed = [f"actor_rollout_ref.model.path={policy}"]
    check_recipe(compose_recipe(name, *needed))


def test_a_check_that_breaks_hides_nothing_that_others_find(check, monkeypatch):
    monkeypatch.setattr(checks, "model_shape", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        check()
    with pytest.raises(ConfigError, match="^gui_agent.max_steps must be"):
        check("gui_agent.max_steps=0")


def test_a_default_is_not_told_as_if_it_were_given(check):
    with pytest.raises(ConfigError, match=r"screen_size must be \[1920, 1080\] with .*, got \[640, 480\]"):
        check("environment.provider=docker")
    with pytest.raises(ConfigError, match="step_timeout_s must be more than the 200 s .*, by default it is 120"):
        check("+environment.wait_s=200")


def test_a_prompt_whose_words_are_not_installed_is_refused(check, monkeypatch):
    monkeypatch.setattr(official_words, "PACKAGE", "absent_agents")
    for words_read_before in (official_words.constants, official_words._assignments):
        words_read_before.cache_clear()
    check()
    with pytest.raises(
        MissingDependencyError, match="absent_agents/uitars15_v1.py is not installed; run arpo-verl install"
    ):
        check("gui_agent.model_family=ui_tars_15")


def test_seeds_of_another_policy_are_refused_with_the_part_that_differs(check, policy, tmp_path):
    inputs = ModelInputs.load(PolicyFiles(str(policy)), {})
    agent = GuiAgentConfig(model_family="small")
    own = model_fingerprint(inputs.tokenizer, inputs.processor, {}, agent)
    save_store(SuccessStore(1), tmp_path / "own", own)
    check(f"replay.seed_from={tmp_path / 'own'}")
    save_store(SuccessStore(1), tmp_path / "other", dataclasses.replace(own, tokenizer="other"))
    with pytest.raises(ReplayError, match="made with another tokenizer"):
        check(f"replay.seed_from={tmp_path / 'other'}")


def test_the_tokenizer_and_template_of_the_recipe_count(check, policy, tmp_path):
    bare = tmp_path / "weights-alone"  # as a fine-tuned checkpoint without its tokenizer
    bare.mkdir()
    (bare / "config.json").write_text((policy / "config.json").read_text())
    check(f"actor_rollout_ref.model.path={bare}", f"actor_rollout_ref.model.tokenizer_path={policy}")
    template = "actor_rollout_ref.model.custom_chat_template=another"
    check(template)
    with pytest.raises(ConfigError, match="model.tokenizer_path must be a folder with a config.json"):
        check("actor_rollout_ref.model.tokenizer_path=./nowhere")
    own = ModelInputs.load(PolicyFiles(str(policy)), {})
    agent = GuiAgentConfig(model_family="small")
    save_store(SuccessStore(1), tmp_path / "own", model_fingerprint(own.tokenizer, own.processor, {}, agent))
    with pytest.raises(ReplayError, match="another tokenizer and another prompt"):
        check(template, f"replay.seed_from={tmp_path / 'own'}")


@pytest.mark.parametrize(
    ("override", "error", "says"),
    [
        ("data.train_files=/no/such/tasks.json", TaskError, "/no/such/tasks.json"),
        (
            "actor_rollout_ref.model.path=./no-such-model",
            ConfigError,
            "^actor_rollout_ref.model.path must be a fold.*$",
        ),
        (
            "actor_rollout_ref.model.path=.cache/seeing",
            ConfigError,
            "seeing'; make it: python -m arpo_verl.tools.policy see",
        ),
        ("gui_agent.max_steps=0", ConfigError, "gui_agent.max_steps"),
        ("+gui_agent.max_step=3", ConfigError, "did you mean gui_agent.max_steps"),
        ("replay.capacity_per_task=0", ConfigError, "replay.enable=false"),
        ("replay.seed_from=/no/such/store", ReplayError, "/no/such/store has none"),
        ("trainer.v1.sampler.custom_sampler.name=ReplaySamplerAsync", ConfigError, "be ReplaySampler with .*=sync"),
        ("environment.screen_size=[100000,4]", ConfigError, "screen_size"),
        ("environment.provider=dokcer", ConfigError, "environment.provider"),
        ("environment.provider=no_such:Desktop", ConfigError, "No module named 'no_such'; is it installed where"),
        ("data.max_response_length=100", ConfigError, "max_response_length"),
        (
            "data.max_prompt_length=100",
            ConfigError,
            "data.max_prompt_length must be at least .*the tokens of the first turn",
        ),
        ("+data.mm_processor_kwargs.max_pixels=31360", ConfigError, "both min_pixels and max_pixels or neither"),
        ("gui_agent.context=windows", ConfigError, "gui_agent.context must be one of full, window, segments"),
        ("algorithm.episode_weight=rows", ConfigError, "algorithm.episode_weight must be one of tokens, equal"),
    ],
)
def test_a_wrong_value_is_named_with_what_to_do(check, override, error, says):
    with pytest.raises(error, match=says):
        check(override)


def test_every_option_that_was_removed_is_named_and_nothing_beside_them(check, monkeypatch):
    for name in ("replay.trigger", "algorithm.step_credit", "gui_agent.grammar"):
        monkeypatch.setitem(REMOVED, name, "a reason")
    with pytest.raises(SeveralErrors) as refused:
        check("+replay.trigger=all_failed", "+algorithm.step_credit.kind=none")
    said = sorted(str(error) for error in refused.value.errors)
    names = ["algorithm.step_credit", "replay.trigger"]
    assert said == [f"{name} was removed: a reason; leave it out" for name in names]


VLLM = "actor_rollout_ref.rollout.name=vllm"
LIMITS = "++actor_rollout_ref.rollout.engine_kwargs.vllm.limit_mm_per_prompt"
TOO_FEW = ("image:null", "image:7", "image:{count:7}")


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        *(([f"{LIMITS}={{{limit}}}"], "image must be at least the 8 screenshots") for limit in TOO_FEW),
        # veRL's own limit takes the place of the engine's, whatever that says.
        (
            [f"{LIMITS}={{image:8}}", "+actor_rollout_ref.rollout.limit_images=7"],
            "rollout.limit_images must be at least the 8 screenshots .* got 7",
        ),
        (
            ["+context=window", f"{LIMITS.removeprefix('++')}.image=4"],
            "at least the 5 screenshots of a row, got 4; leave it out, or .*max_screens",
        ),
    ],
)
def test_a_limit_of_images_that_a_row_exceeds_is_refused(check, overrides, says):
    with pytest.raises(ConfigError, match=says):
        check(VLLM, *overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        *([f"{LIMITS}={limit}"] for limit in ("null", "{image:8}", "{video:0}", "{image:{width:640}}")),
        ["+actor_rollout_ref.rollout.limit_images=8"],
        ["+context=window"],
        ["+context=window", f"{LIMITS.removeprefix('++')}.image=5"],
        ["gui_agent.max_screenshots=null", f"{LIMITS}={{image:${{gui_agent.max_steps}}}}"],
    ],
)
def test_a_limit_of_images_that_holds_a_row_passes(check, overrides):
    check(VLLM, *overrides)


@pytest.mark.parametrize("context", ["window", "segments"])
def test_a_row_must_hold_its_screenshots(check, context):
    check(f"+context={context}", "gui_agent.max_steps=40", "algorithm.episode_weight=equal")
    with pytest.raises(ConfigError, match="must be at least .*, our estimate for a row with .* screenshots"):
        check(f"+context={context}", "data.max_response_length=200")


DOCKER = (
    "environment.provider=docker",
    "environment.screen_size=[1920,1080]",
    "+environment.path_to_vm=/no/such.qcow2",
    "data.max_prompt_length=4096",
)


def test_what_a_provider_lacks_is_named_before_anything_starts_where_desktops_are_here(check, monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(checks, "RAY_CLUSTER_FILE", tmp_path / "none")
    overrides = (*DOCKER, "data.max_response_length=60000")
    with pytest.raises((ConfigError, MissingDependencyError), match="/no/such.qcow2|pip install"):
        check(*overrides)
    check(*overrides, "trainer.nnodes=2")
    check(*overrides, "+environment.py_executable=/opt/python")
    overrides += (f"run_dir={tmp_path}",)
    check(*overrides, "ray_kwargs.ray_init.address=10.0.0.1:6379")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check(*overrides, "ray_kwargs.ray_init.address=null")


@pytest.mark.release
def test_relative_paths_are_refused_where_a_running_cluster_is_joined(check, policy, monkeypatch, tmp_path):
    """Its actors work where `ray start` ran: half of the run would lie there, and half where the driver is."""
    cluster = "ray_kwargs.ray_init.address=10.0.0.1:6379"
    with pytest.raises(ConfigError, match="absolute, got 'run_dir=runs/a trainer.default_local_dir=runs/a/checkpoints"):
        check(cluster, "run_dir=runs/a")
    monkeypatch.chdir(policy.parent)
    with pytest.raises(ConfigError, match=r"absolute, got 'actor_rollout_ref.model.path=policy'"):
        check(cluster, f"run_dir={tmp_path}", "actor_rollout_ref.model.path=policy")
    check(cluster, f"run_dir={tmp_path}")
    check("run_dir=runs/a")
    with pytest.raises(ConfigError, match=rf"'run_dir=~/a trainer.*set run_dir={Path.home()}/a"):
        check(cluster, "run_dir='~/a'")
    (tmp_path / "tasks").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"absolute, got 'data.train_files=tasks'"):
        check(cluster, f"run_dir={tmp_path}", "data.train_files=[embedded,tasks]")


def test_the_sampler_follows_the_trainer_mode(check):
    check("trainer.v1.trainer_mode=colocate_async")
    apart = ("nnodes=1", "n_gpus_per_node=1", "checkpoint_engine.backend=ray")
    check(
        "trainer.v1.trainer_mode=separate_async",
        *(f"actor_rollout_ref.rollout.{option}" for option in apart),
        "trainer.v1.separate_async.parameter_sync_step=4",
    )


def test_a_task_that_starts_an_unknown_program_is_refused(check, tmp_path):
    task = json.loads((RECIPES.parent / "arpo_verl/tasks/embedded/dialog-confirm-yes.json").read_text())
    task["config"] = [{"type": "launch", "parameters": {"command": ["no-such-program-here"]}}]
    path = tmp_path / "task.json"
    path.write_text(json.dumps(task))
    with pytest.raises(TaskError, match="no-such-program-here"):
        check(f"data.train_files={path}")


def test_what_is_wrong_with_both_lists_is_told_at_once(check, tmp_path):
    for name in ("train", "val"):
        (tmp_path / f"{name}.json").write_text('{"id": ')
    with pytest.raises(SeveralErrors, match=r"(?s)train.json.*val.json"):
        check(f"data.train_files={tmp_path}/train.json", f"data.val_files={tmp_path}/val.json")


@pytest.mark.parametrize("installed", [None, "0.3.2.dev0", "0.9.0", "0.9.2", "0.9.10", "0.10.0.dev0", "1.0.0"])
def test_a_recipe_for_another_verl_is_refused(check, monkeypatch, installed):
    monkeypatch.setattr(versions, "installed_version", lambda package: installed)
    with pytest.raises(MissingDependencyError, match=r"pip install verl==0\.9\.1"):
        check()


@pytest.mark.parametrize("installed", ["0.9.1", "0.9.1.post1", "0.9.1+cu130"])
def test_a_build_of_a_supported_verl_is_taken(monkeypatch, installed):
    monkeypatch.setattr(versions, "installed_version", lambda package: installed)
    versions.require_verl()


@pytest.mark.release
def test_the_trainer_command_itself_stops_with_one_line(policy, tmp_path):
    """Through the stock trainer's own process: no Ray, no traceback, an exit status."""
    command = [sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", str(RECIPES), "--config-name", "embedded"]
    paths = [f"run_dir={tmp_path}", f"actor_rollout_ref.model.path={policy}"]
    overrides = ["data.train_files=/no/such/tasks.json", *paths]
    result = subprocess.run([*command, *overrides], capture_output=True, text=True, cwd=RECIPES.parent)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("arpo_verl: /no/such/tasks.json")
    assert "Traceback" not in result.stderr and "ray" not in result.stdout.lower()
