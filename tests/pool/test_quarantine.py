"""Tasks that break desktops, without Ray."""

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.pool.quarantine import Quarantine


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def make_quarantine(num_desktops=8, num_hosts=1, **options):
    options = {"quarantine_faults": 3, "quarantine_desktops": 2, "quarantine_s": 60, **options}
    clock = Clock()
    return Quarantine(EnvironmentConfig(num_desktops=num_desktops, **options), lambda: num_hosts, clock), clock


def break_desktops(quarantine, task_id, slots, host="a"):
    """Faults of the task, while another is completed."""
    for slot in slots:
        quarantine.fault(task_id, slot, host)
        quarantine.completed("other")


def test_enough_faults_on_enough_desktops_shut_a_task_out_and_no_other():
    quarantine, _ = make_quarantine()
    for slot in (0, 1):
        break_desktops(quarantine, "bad", [slot])
        assert quarantine.refusal("bad") is None
    quarantine.fault("bad", 1, "a")
    assert "task bad is quarantined for 60 s more" in quarantine.refusal("bad")
    assert "3 times, 2 different ones on 1 hosts" in quarantine.refusal("bad")
    assert quarantine.refusal("good") is None
    assert quarantine.task_ids == ["bad"]


def test_faults_on_one_desktop_only_are_the_desktops():
    quarantine, _ = make_quarantine()
    break_desktops(quarantine, "unlucky", [0] * 10)
    assert quarantine.refusal("unlucky") is None


def test_in_a_pool_of_one_its_faults_count():
    quarantine, _ = make_quarantine(num_desktops=1)
    break_desktops(quarantine, "bad", [0, 0, 0])
    assert quarantine.refusal("bad")


def test_when_nothing_else_is_completed_either_no_task_is_to_blame():
    quarantine, _ = make_quarantine()
    quarantine.completed("before")
    for slot in range(6):
        quarantine.fault("one", slot, "a")
        quarantine.fault("another", slot, "a")
    assert quarantine.task_ids == []
    quarantine.completed("third")
    quarantine.fault("one", 0, "a")
    assert quarantine.task_ids == ["one"]


def test_a_completed_episode_clears_the_task():
    quarantine, _ = make_quarantine()
    for _ in range(5):
        break_desktops(quarantine, "flaky", [0, 1])
        quarantine.completed("flaky")
    assert quarantine.refusal("flaky") is None
    quarantine.completed("never seen")


def test_after_its_time_a_task_is_tried_again_on_probation():
    quarantine, clock = make_quarantine()
    break_desktops(quarantine, "bad", range(3))
    clock.now += 60
    assert quarantine.refusal("bad") is None and quarantine.task_ids == []
    quarantine.fault("bad", 0, "a")
    assert quarantine.refusal("bad"), "one more fault sends it back"
    clock.now += 60
    quarantine.completed("bad")
    quarantine.fault("bad", 0, "a")
    assert quarantine.refusal("bad") is None, "one completed episode clears it"


def test_zero_faults_never_quarantines():
    quarantine, _ = make_quarantine(quarantine_faults=0)
    break_desktops(quarantine, "bad", [slot % 8 for slot in range(20)])
    assert quarantine.refusal("bad") is None


def test_where_there_are_two_hosts_a_task_must_have_broken_desktops_on_both():
    quarantine, _ = make_quarantine(num_hosts=3)
    break_desktops(quarantine, "unlucky", range(8), "ill")
    assert quarantine.refusal("unlucky") is None
    quarantine.fault("unlucky", 8, "well")
    assert "9 different ones on 2 hosts" in quarantine.refusal("unlucky")


def test_a_task_is_suspected_while_others_are_completed_and_none_of_its_own():
    quarantine, _ = make_quarantine(quarantine_faults=0)
    quarantine.fault("bad", 0, "a")
    assert not quarantine.suspects("bad") and not quarantine.suspects("never seen")
    quarantine.completed("other")
    assert quarantine.suspects("bad")
    quarantine.completed("bad")
    assert not quarantine.suspects("bad")
