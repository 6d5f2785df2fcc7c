"""What the run's callback hands to the stock trainer."""

import json
import os

import pytest

from arpo_verl.run_callback import RAY_JOB_CONFIG, hand_to_ray_workers


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
