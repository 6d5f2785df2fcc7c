"""Tasks that break desktops, without Ray."""

import pytest

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.quarantine import Quarantine
from arpo_verl.errors import ConfigError


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def make_quarantine(num_desktops=8, **options):
    options = {"quarantine_faults": 3, "quarantine_desktops": 2, "quarantine_s": 60, **options}
    clock = Clock()
    return Quarantine(EnvironmentConfig(num_desktops=num_desktops, **options), clock), clock


def test_enough_faults_on_enough_desktops_shut_a_task_out_and_no_other():
    quarantine, _ = make_quarantine()
    for slot in (0, 1):
        quarantine.fault("bad", slot)
        assert quarantine.refusal("bad") is None
    quarantine.fault("bad", 1)
    assert "task bad is quarantined for 60 s more" in quarantine.refusal("bad")
    assert "3 times, on 2 different ones" in quarantine.refusal("bad")
    assert quarantine.refusal("good") is None
    assert quarantine.task_ids == ["bad"]


def test_faults_on_one_desktop_only_are_the_desktops():
    quarantine, _ = make_quarantine()
    for _ in range(10):
        quarantine.fault("unlucky", 0)
    assert quarantine.refusal("unlucky") is None


def test_in_a_pool_of_one_its_faults_count():
    quarantine, _ = make_quarantine(num_desktops=1)
    for _ in range(3):
        quarantine.fault("bad", 0)
    assert quarantine.refusal("bad")


def test_a_completed_episode_clears_the_task():
    quarantine, _ = make_quarantine()
    for _ in range(5):
        quarantine.fault("flaky", 0)
        quarantine.fault("flaky", 1)
        quarantine.completed("flaky")
    assert quarantine.refusal("flaky") is None
    quarantine.completed("never seen")


def test_after_its_time_a_task_is_tried_again_on_probation():
    quarantine, clock = make_quarantine()
    for slot in range(3):
        quarantine.fault("bad", slot)
    clock.now += 60
    assert quarantine.refusal("bad") is None and quarantine.task_ids == []
    quarantine.fault("bad", 0)
    assert quarantine.refusal("bad"), "one more fault sends it back"
    clock.now += 60
    quarantine.completed("bad")
    quarantine.fault("bad", 0)
    assert quarantine.refusal("bad") is None, "one completed episode clears it"


def test_zero_faults_never_quarantines():
    quarantine, _ = make_quarantine(quarantine_faults=0)
    for slot in range(20):
        quarantine.fault("bad", slot % 8)
    assert quarantine.refusal("bad") is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("quarantine_faults", -1),
        ("quarantine_desktops", 0),
        ("quarantine_s", -1),
        ("max_boots_per_host", 0),
        ("health_interval_s", 0),
        ("retry_backoff_s", -0.1),
    ],
)
def test_impossible_values_are_refused(option, value):
    with pytest.raises(ConfigError, match=f"environment.{option} must be"):
        EnvironmentConfig(**{option: value})
