import logging
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.errors import ConfigError
from arpo_verl.plugin.job_desktops import JobDesktops

FAKE = EnvironmentConfig(provider="fake", num_desktops=2, host_resource="docker:")


def test_without_ray_or_an_environment_section_there_is_nothing_to_make_or_read(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    assert JobDesktops(None).read() == {}
    assert JobDesktops(FAKE).read() == {}


def test_a_cluster_that_cannot_hold_the_desktops_is_told(local_ray):
    with pytest.raises(ConfigError, match="num_desktops"):
        JobDesktops(replace(FAKE, num_desktops=3))


def test_the_pools_counters_are_read_until_it_is_lost(local_ray, caplog):
    desktops = JobDesktops(FAKE)
    read = desktops.read()
    assert read["environment/leases"] == 0 and all(name.startswith("environment/") for name in read)
    desktops._pool.close()
    with caplog.at_level(logging.WARNING):
        while desktops.read():  # Ray kills an actor in its own time
            time.sleep(0.05)
    assert "the desktop pool gave no metrics this step" in caplog.text


def test_only_a_refusal_of_the_pool_ends_the_run():
    """If the pool is dead, the watch over the run's processes ends it."""
    desktops, answers = JobDesktops(None), iter([ActorDiedError(), "", "no room"])

    def refusal():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    desktops._pool = SimpleNamespace(refusal=refusal)
    desktops.check()
    desktops.check()
    with pytest.raises(ConfigError, match="no room"):
        desktops.check()
