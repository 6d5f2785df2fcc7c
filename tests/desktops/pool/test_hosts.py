"""When a host is dropped, who asks it, and what brings it back, without Ray."""

import pickle

import pytest

from arpo_verl.desktops.pool.hosts import ASK_INTERVAL_S, Hosts


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def play(hosts, events):
    """Tell `hosts` of events on host a: `boot` or a task's set-up, `+` that it succeeded, `-` that it failed.

    Attempts begin when they end, but for `began=name-`: then before everything else.
    """
    for event in events.split():
        what, good = event.removeprefix("began=")[:-1], event.endswith("+")
        if what == "boot":
            hosts.booted("a") if good else hosts.boot_failed("a", "docker:a", "why")
        elif good:
            hosts.set_up("a", "docker:a", what)
        else:
            begun = 0 if event.startswith("began=") else hosts.set_ups("a")
            hosts.set_up_failed("a", "docker:a", what, begun, "why")


@pytest.mark.parametrize(
    ("events", "is_dropped"),
    [
        ("boot- boot-", False),
        ("boot- boot- boot-", True),
        ("boot- boot- boot+ boot-", False),
        ("boot- boot- boot- boot+", False),
        ("t- t- t- t- t-", False),  # no desktop can set up this task
        ("t- t- u-", True),
        ("t- u- boot-", True),
        ("t- u- v+ t- u-", False),
        ("t- boot+ u- boot+ v-", True),  # boots alone are no service
        ("t- t- u- boot+", True),
        ("t- t- u- v+", False),
        ("v+ began=t- began=t- began=u-", False),  # others were set up meanwhile
        ("t- u- v+ t- u- t- u-", False),  # others were set up since these tasks first failed
        ("t- u- v+ t+ u+ t- u- u-", True),
        ("t- v+ u- w- u- t- u- w-", True),
    ],
)
def test_a_host_is_dropped_after_three_failures_in_a_row_that_are_no_tasks_own(events, is_dropped):
    hosts = Hosts(Clock())
    play(hosts, events)
    assert hosts.is_dropped("a") == is_dropped
    assert ("docker:a" in hosts.dropped) == is_dropped and not hosts.is_dropped("b")


def test_a_failure_is_the_hosts_if_it_is_dropped_and_others_failed_there_too():
    hosts = Hosts(Clock())
    blamed = [hosts.set_up_failed("a", "docker:a", task, 0, "why") for task in "ttuv"]
    assert blamed == [False, False, True, True]
    assert hosts.dropped == {"docker:a": "the set-up of v failed: why"}
    play(hosts, "w+")
    assert hosts.set_up_failed("a", "docker:a", "v", 0, "why") is False


def test_a_dropped_host_is_asked_by_one_desktop_every_half_minute_for_days():
    """The pause was 5 s times a power of two, which was no number after a thousand probes."""
    clock = Clock()
    hosts = Hosts(clock)
    play(hosts, "boot- boot- boot-")
    for _ in range(2000):
        assert not hosts.may_use("a") and hosts.may_use("b")
        clock.now += ASK_INTERVAL_S
        assert hosts.may_use("a") and hosts.ask("a") and not hosts.may_use("a")
        play(hosts, "boot-")
        hosts.answered("a")


def test_a_desktop_that_boots_on_a_dropped_host_is_leased_at_once_and_its_set_up_decides():
    clock = Clock()
    hosts = Hosts(clock)
    play(hosts, "t- u- v-")
    clock.now += ASK_INTERVAL_S
    assert hosts.ask("a")
    hosts.answered("a")
    play(hosts, "boot+")
    assert hosts.is_dropped("a") and hosts.may_use("a") and hosts.ask("a")
    play(hosts, "t+")
    assert not hosts.is_dropped("a") and hosts.may_use("a") and not hosts.ask("a")


def test_a_host_whose_own_set_up_forbids_desktops_is_dropped_at_once():
    hosts = Hosts(Clock())
    assert not hosts.all_misconfigured([])
    hosts.boot_failed("a", "docker:a", "no bwrap", is_misconfigured=True)
    assert hosts.boots_none("a") and hosts.all_misconfigured(["a"]) and not hosts.all_misconfigured(["a", "b"])
    play(hosts, "boot+")
    assert not hosts.is_dropped("a") and not hosts.all_misconfigured(["a"])


def test_a_task_that_fails_for_ever_adds_nothing_for_ever():
    hosts = Hosts(Clock())
    play(hosts, "t- " * 100)
    assert len(pickle.dumps(hosts)) < 1000 and not hosts.is_dropped("a")


def test_a_node_that_is_gone_is_forgotten():
    hosts = Hosts(Clock())
    play(hosts, "boot- boot- boot-")
    hosts.forget_all_but(["b"])
    assert hosts.dropped == {}
