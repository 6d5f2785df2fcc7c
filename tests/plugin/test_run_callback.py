"""What the run's callback hands to the stock trainer."""

import json
import os
import queue
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace as Named

import pytest
import ray
from hydra.utils import instantiate
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError, RayTaskError
from support import ROOT
from support.composed import compose_in, compose_recipe
from support.run_holder import start_holder

from arpo_verl.errors import ConfigError
from arpo_verl.lib.files import check_place
from arpo_verl.lib.own_ray import RAY_AUTH, settle_ray_token, start_ray
from arpo_verl.plugin import run_callback
from arpo_verl.plugin.recipe.footprint import describe_schedule
from arpo_verl.plugin.run_callback import RAY_JOB_CONFIG, RunCallback, hand_to_ray_workers
from arpo_verl.plugin.settings import load_settings
from arpo_verl.records.ended_starts import note_fault, read_faults
from arpo_verl.records.starts import read_starts
from arpo_verl.records.step_lines import StepLines
from arpo_verl.tools.cli.trainer_process import FAILED


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (RAY_JOB_CONFIG, "RAY_OVERRIDE_JOB_RUNTIME_ENV"):
        monkeypatch.setenv(name, "{}")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    for name in RAY_AUTH:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PLACE", "/runs/1")
    monkeypatch.setattr(ray, "init", ray.init)


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Start a run in `tmp_path / "run"` whose recipe passes its checks."""
    for name in ("VERL_FILE_LOGGER_PATH", "TENSORBOARD_DIR"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
    monkeypatch.setattr(run_callback, "check_recipe", lambda config, *_: None)
    trainer = {"default_local_dir": str(tmp_path / "checkpoints"), "resume_mode": "auto", "total_epochs": 3}

    def begin_run(**sections):
        config = {"run_dir": str(tmp_path / "run"), "trainer": trainer, **sections}
        RunCallback().on_job_start(OmegaConf.create(config))

    return begin_run


def handed():
    return json.loads(os.environ[RAY_JOB_CONFIG])


def test_workers_of_a_running_cluster_are_given_the_places_of_the_loggers():
    hand_to_ray_workers("PLACE", "NOT_SET")
    assert handed() == {"runtime_env": {"env_vars": {"PLACE": "/runs/1"}}}


def test_what_a_submitted_job_says_stays(monkeypatch):
    submitted = {"runtime_env": {"working_dir": "/code", "env_vars": {"A": "1"}}, "metadata": {"job_name": "x"}}
    monkeypatch.setenv(RAY_JOB_CONFIG, json.dumps(submitted))
    hand_to_ray_workers("PLACE")
    expected = {"working_dir": "/code", "env_vars": {"A": "1", "PLACE": "/runs/1"}}
    assert handed() == {"runtime_env": expected, "metadata": {"job_name": "x"}}


def test_each_start_is_noted_in_the_runs_folder(tmp_path, begin):
    for _ in range(2):
        begin()
    assert [start["recipe"] for start in read_starts(tmp_path / "run")] == [{"trainer.total_epochs": 3}] * 2


def test_a_check_that_breaks_refuses_the_start(tmp_path, monkeypatch, caplog):
    """Hydra would make a warning of it, and start the run unchecked."""
    trainer = {"default_local_dir": str(tmp_path / "checkpoints"), "resume_mode": "auto", "total_epochs": 3}
    monkeypatch.setattr(run_callback, "check_recipe", lambda config, *_: config.trainer.nnodes * 1)
    config = OmegaConf.create({"run_dir": str(tmp_path), "trainer": {**trainer, "nnodes": None}})
    with pytest.raises(
        SystemExit, match=r"the recipe cannot be checked \(TypeError: .*so the run does not start; look"
    ):
        RunCallback().on_job_start(config)
    assert "Traceback" in caplog.text and read_starts(tmp_path) == []


def test_steps_are_printed_while_the_trainer_works_and_the_last_at_its_end(tmp_path, monkeypatch):
    printed = queue.Queue()
    monkeypatch.setattr(run_callback, "print", lambda line, **_: printed.put(line), raising=False)
    steps = run_callback.PrintedSteps(StepLines(tmp_path, total=2))
    log_step(tmp_path, 1)
    assert printed.get(timeout=300) == "step 1 of 2  5 s  5 s left"
    log_step(tmp_path, 2)
    steps.close()
    assert printed.get_nowait() == "step 2 of 2  5 s"


def log_step(folder, step):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "data": {"training/global_step": step, "timing_s/step": 5.0}}) + "\n")


def test_a_second_trainer_in_a_runs_folder_is_refused_until_the_first_is_dead(tmp_path, begin):
    with start_holder(tmp_path / "run") as first:
        with pytest.raises(SystemExit, match=rf"another trainer uses .*/run \(process {first.pid} on .*\); wait"):
            begin()
        assert read_starts(tmp_path / "run") == []
        first.kill()
        first.wait()
        with start_holder(tmp_path / "run") as second:
            second.kill()
    begin()
    begin()  # the same process may


def test_a_run_folder_that_cannot_be_made_is_refused_before_hydra_makes_it(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    config = OmegaConf.create({"run_dir": str(tmp_path / "file" / "run")})
    monkeypatch.setattr(run_callback, "check_recipe", lambda config, *_: None)
    with pytest.raises(SystemExit, match=r"^arpo_verl: run_dir=.*/run: .*/run is a file or leads through one"):
        RunCallback().on_run_start(config)
    monkeypatch.setattr(run_callback, "check_recipe", lambda config, *_: check_place("run_dir", tmp_path / "file"))
    with pytest.raises(SystemExit, match="^arpo_verl: run_dir cannot be .*/file is a file; name another folder$"):
        RunCallback().on_run_start(config)


def test_what_cannot_be_described_is_no_reason_not_to_train(capsys, caplog, monkeypatch):
    assert run_callback.tell_plan(OmegaConf.create({})) == ()
    assert all(f"describe the run: {name} failed" in caplog.text for name in ("footprint", "schedule"))
    monkeypatch.setattr(run_callback, "describe_untested", lambda: "untested: vllm 99")
    config = compose_recipe("demo", "actor_rollout_ref.model.path=some/model", "+polcy=qwen3_vl")
    plan = run_callback.tell_plan(config)
    assert plan[0].endswith("some/model has no known shape") and plan[1].startswith("steps")
    assert plan[2:] == (
        "note         polcy is not an option of veRL's; did you mean policy?",
        "note         untested: vllm 99",
    )
    assert capsys.readouterr().out == "\n".join(plan) + "\n"


OWN = """
defaults: [ppo_trainer, arpo, _self_]
hydra: {searchpath: [pkg://arpo_verl.recipes]}
"""


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("own", ()),
        ("ppo_trainer", ("hydra.searchpath=[pkg://arpo_verl.recipes]", "+plugin=arpo", "hydra/job_logging=stdout")),
    ],
)
def test_a_users_own_configuration_gets_all_of_arpo_or_is_refused(name, overrides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN)
    config = compose_in(tmp_path, name, *overrides, "trainer.experiment_name=e", "trainer.logger=wandb", hydra=True)
    callback = instantiate(config.hydra.callbacks.arpo_verl)
    assert all(
        "class" in handler for handler in config.hydra.job_logging.handlers.values()
    )  # a part of one breaks others
    assert config.hydra.run.dir == "runs/e" and config.data.max_response_length == 60416
    desktops = load_settings(config).environment
    assert (desktops.provider, desktops.screen_size, desktops.action_pause_s) == ("docker", (1920, 1080), 2)
    with pytest.raises(SystemExit, match="type a command for each run"):
        callback.on_multirun_start(config)
    callback.on_run_start(config)
    assert Path("runs/e").is_dir() and config.trainer.logger == ["wandb", "file"]
    with pytest.raises(SystemExit, match="No task files for training given"):
        callback.on_job_start(config)


@pytest.mark.parametrize("order", ["[arpo, ppo_trainer, _self_]", "[ppo_trainer, _self_]"])
def test_the_callback_without_the_rest_of_arpo_refuses_and_says_where_to_add_it(order, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(OWN.replace("[ppo_trainer, arpo, _self_]", order))
    config = compose_in(tmp_path, "own", hydra=True)
    with pytest.raises(SystemExit, match="add .- arpo. after ppo_trainer|let .- arpo. come after ppo_trainer"):
        RunCallback().on_run_start(config)
        RunCallback().on_job_start(config)


FAILS = """
import signal, threading
from hydra.core.utils import JobReturn, JobStatus
from arpo_verl.plugin import run_callback

run_callback.ENDING_S = 1
run_callback.RunCallback().on_job_end(None, JobReturn(status=JobStatus.FAILED))
threading.Thread(target=threading.Event().wait).start()  # what waits for ever at the interpreter's end
"""


def test_a_trainer_that_failed_says_so_and_ends_even_if_its_clean_up_hangs():
    done = subprocess.run([sys.executable, "-c", FAILS], stdout=subprocess.PIPE, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (-signal.SIGALRM, f"{FAILED}\n")


DEATH = "A process of the run died. Ray says: ActorDiedError: "


OURS = ConfigError("no desktop can be made")


@pytest.mark.parametrize(
    ("error", "noted", "printed", "lasts"),
    [
        (ActorDiedError(), [], DEATH, False),
        (RayTaskError("run", "traceback", ActorDiedError()), [], DEATH, False),
        (ActorDiedError(), ["the queue died"], "the queue died", False),
        (ValueError("of veRL"), ["the queue died"], "the queue died", False),
        (ValueError("of veRL"), [], "", False),
        (OURS, [], "ConfigError: no desktop can be made", True),
        (RayTaskError("run", "traceback", OURS).as_instanceof_cause(), [], "ConfigError: no desktop can be made", True),
    ],
)
def test_a_run_ends_with_a_sentence_about_what_the_next_start_must_know(tmp_path, capsys, error, noted, printed, lasts):
    note_fault(tmp_path, "of an earlier start")
    for sentence in noted:
        note_fault(tmp_path, sentence)
    run_callback.print_fault(tmp_path, 1, error)
    assert f"the run ended: {printed}" in capsys.readouterr().out if printed else capsys.readouterr().out == ""
    faults = read_faults(tmp_path)
    assert len(faults) == 1 + bool(printed) and faults[-1].lasts == lasts


def test_a_run_s_own_ray_is_started_with_patience_and_a_cluster_s_is_not(begin):
    stock = ray.init
    for address, is_ours in (("10.0.0.1:6379", False), ("local", True), ("local", True)):
        begin(ray_kwargs={"ray_init": {"address": address}})
        assert (ray.init.func, ray.init.args) == (start_ray, (stock,)) if is_ours else ray.init is stock


OWN_RAY = """
import os, ray
from pathlib import Path
from support.local_ray import start_ray
from arpo_verl.lib.own_ray import settle_ray_token

settle_ray_token(joins=False)
start_ray(num_cpus=1)
assert ray.get(ray.remote(lambda: os.environ["RAY_AUTH_TOKEN"]).remote()) == os.environ["RAY_AUTH_TOKEN"]
assert not (Path.home() / ".ray" / "auth_token").exists()
"""


@pytest.mark.release
def test_a_runs_own_ray_leaves_no_token_that_other_clusters_would_ask_for(tmp_path):
    path = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    subprocess.run(
        [sys.executable, "-c", OWN_RAY], env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": path}, check=True
    )


def ours(caplog):
    """Our own messages: a thread or a finalizer of another test's may log something just then."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("arpo_verl.")]


def test_a_token_that_may_be_asked_for_is_named_where_a_cluster_is_joined(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HOME", str(tmp_path))
    settle_ray_token(joins=True)
    assert ours(caplog) == []
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("token")
    settle_ray_token(joins=False)
    settle_ray_token(joins=True)
    assert [message.partition("auth_token")[2] for message in ours(caplog)] == [
        ": if the cluster refuses this run, set RAY_AUTH_MODE=token"
    ]
    assert "RAY_AUTH_TOKEN" not in os.environ


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ((), "steps        20; saves: every step, after step 20; validates: before step 1, after step 20"),
        (
            ("trainer.save_freq=8", "trainer.test_freq=4", "trainer.total_training_steps=9"),
            "steps        9; saves: every 8 steps, after step 9; validates: before step 1, every 4 steps, after step 9",
        ),
        (
            ("trainer.save_freq=-1", "trainer.test_freq=-1", "trainer.val_before_train=false"),
            "steps        20; saves: never; validates: never",
        ),
        (
            ("data.train_files=nowhere.json", "trainer.save_freq=8"),
            "steps        unknown; saves: every 8 steps, after the last step; "
            "validates: before step 1, every 1000 steps, after the last step",
        ),
        (("trainer.val_only=true",), "steps        none: it validates and ends"),
    ],
)
def test_a_run_says_how_many_steps_it_has_and_when_it_saves_and_validates_last(overrides, line):
    assert describe_schedule(compose_recipe("demo", *overrides)) == line


def test_the_file_that_hydra_starts_is_checked_too(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").touch()
    sources = [Named(provider="main", path="/none"), Named(provider="command-line", path=str(tmp_path))]
    hydra = Named(runtime=Named(config_sources=sources), job=Named(config_name="mine"), overrides=Named(task=["a=1"]))
    monkeypatch.setattr(run_callback.HydraConfig, "initialized", lambda: True)
    monkeypatch.setattr(run_callback.HydraConfig, "get", lambda: hydra)
    checked = []
    monkeypatch.setattr(run_callback, "check_recipe", lambda *given: checked.append(given))
    run_callback.refuse_unfit("config")
    assert checked == [("config", tmp_path / "mine.yaml", ["a=1"])]
