"""What the run's callback hands to the stock trainer."""

import json
import os

import pytest
from omegaconf import OmegaConf

from arpo_verl.plugin import run_callback
from arpo_verl.plugin.run_callback import RAY_JOB_CONFIG, RunCallback, hand_to_ray_workers
from arpo_verl.records.starts import read_starts


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in (RAY_JOB_CONFIG, "RAY_OVERRIDE_JOB_RUNTIME_ENV"):
        monkeypatch.setenv(name, "{}")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("PLACE", "/runs/1")


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


def test_each_start_is_noted_in_the_runs_folder(tmp_path, monkeypatch):
    for name in ("VERL_FILE_LOGGER_PATH", "TENSORBOARD_DIR"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
    monkeypatch.setattr(run_callback, "check_recipe", lambda config: None)
    trainer = {"default_local_dir": str(tmp_path / "checkpoints"), "resume_mode": "auto", "total_epochs": 3}
    config = OmegaConf.create({"run_dir": str(tmp_path / "run"), "trainer": trainer})
    for _ in range(2):
        RunCallback().on_job_start(config)
    assert [start["recipe"] for start in read_starts(tmp_path / "run")] == [{"trainer.total_epochs": 3}] * 2
