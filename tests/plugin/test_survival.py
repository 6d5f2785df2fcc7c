"""What the pool and the retries make of hosts that fail: whole training steps, simulated over the real classes."""

import asyncio
import logging
from collections import Counter

import pytest
from support.simulated_pool import Host, Simulation

from arpo_verl.desktops.pool.metrics import DesktopState
from arpo_verl.errors import ConfigError, DesktopBootError, DesktopError, DesktopSetupError, EvaluatorError

ALL_FAIL = {
    "prepare": "DesktopBootError",
    "reset": "DesktopSetupError",
    "step": "DesktopLostError",
    "evaluate": "EvaluatorError",
}


def group(num_tasks=16, size=8):
    return [f"task-{task}" for task in range(num_tasks) for _ in range(size)]


def between(start_s, seconds, faults):
    """The same faults from `start_s` on and for `seconds`, by the simulation's clock."""

    def during(fault):
        def now(task_id):
            clock = asyncio.get_running_loop().time() - 1000.0
            return fault if start_s <= clock < start_s + seconds else None

        return now

    return {call: during(fault) for call, fault in faults.items()}


def told(caplog, words):
    return sum(words in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("units", [16, pytest.param(64, marks=pytest.mark.release)])
@pytest.mark.parametrize(
    "faults",
    [{"reset": "DesktopSetupError"}, {"reset": "DesktopBootError"}, {"step": "DesktopLostError"}, ALL_FAIL],
    ids=["set-up", "boot in set-up", "first action", "everything"],
)
def test_a_host_on_which_everything_fails_at_once_loses_no_sessions(monkeypatch, caplog, units, faults):
    """It drew the leases, its desktops being free again long before the others': 80 of 128 sessions were dropped."""
    good, bad = Host("a", units), Host("b", units, faults=faults)
    simulation = Simulation(monkeypatch, [good, bad])
    with caplog.at_level(logging.WARNING):
        simulation.run(group())
    assert len(simulation.lost) <= 128 * 0.05 / 2, Counter(map(str, simulation.lost))
    if "step" not in faults:
        assert simulation.metrics["environment/hosts_dropped"] == 1 and told(caplog, "host docker:b is dropped") == 1


@pytest.mark.parametrize("seconds", [20, 300])
@pytest.mark.parametrize("num_hosts", [1, 2])
@pytest.mark.parametrize(
    "faults",
    [ALL_FAIL, {"reset": "DesktopSetupError"}, {"prepare": "DesktopBootError", "step": "DesktopLostError"}],
    ids=["everything", "set-ups", "boots"],
)
@pytest.mark.parametrize("sessions", [group(), group(2, 4)], ids=["many", "few"])
def test_an_outage_of_all_hosts_costs_time_and_no_session(monkeypatch, seconds, num_hosts, faults, sessions):
    """One of 300 s dropped all of 128 sessions."""
    outage = between(65, seconds, faults)
    hosts = [Host(name, 16, faults=outage) for name in "ab"[:num_hosts]]
    simulation = Simulation(monkeypatch, hosts, start_s=60)
    simulation.run(sessions)
    assert not simulation.lost, Counter(map(str, simulation.lost))
    assert simulation.metrics["environment/hosts_dropped"] == 0
    assert simulation.now - 1000 > 65 + seconds


def boots_in_turn(place):
    """Of eight hosts one after the other boots."""

    def fault(task_id):
        clock = asyncio.get_running_loop().time() - 1000.0
        return None if clock < 65 or clock // 600 % 8 == place else "DesktopBootError"

    return fault


NO_SET_UP = between(65, 1e9, {"reset": "DesktopSetupError"})
# The hosts, the sessions, and within how many seconds after `outage_timeout_s` all of them are told.
OUTAGES = {
    # The retries of those who were told do not wait again.
    "for ever": ([Host(name, 16, faults=between(65, 1e9, ALL_FAIL)) for name in "ab"], group(), 60),
    # At each look some host was being asked: nobody was ever told.
    "hosts are asked in turn": ([Host(name, 4, {"reset": 20.0}, NO_SET_UP) for name in "abcd"], group(4, 4), 120),
    # Each desktop that came up, though no task could be set up on it, put the report off by another 15 minutes.
    "hosts boot in turn and none serves": (
        [Host(n, 1, {"reset": 20.0}, {"prepare": boots_in_turn(i), **NO_SET_UP}) for i, n in enumerate("abcdefgh")],
        group(4, 4),
        120,
    ),
    # Sessions rest for long between attempts and never wait. While they rested nobody wanted a desktop, and the outage
    # was forgotten; nobody who asked a host was told.
    "sessions rest": ([Host("a", 4, faults=NO_SET_UP)], group(2, 1), 2 * 360),
}


@pytest.mark.parametrize("row", OUTAGES)
def test_an_outage_that_lasts_is_told(monkeypatch, row):
    hosts, sessions, within_s = OUTAGES[row]
    rest = {"retry_backoff_s": 90.0} if row == "sessions rest" else {}
    simulation = Simulation(monkeypatch, hosts, start_s=60, **rest)
    simulation.run(sessions)
    assert len(simulation.lost) == len(sessions) and simulation.now - 1000 < 65 + 900 + within_s
    kind = DesktopError if rest else DesktopBootError
    assert all(isinstance(error, kind) for error in simulation.lost)
    if row == "for ever":
        for error in simulation.lost:
            assert "environment.outage_timeout_s=900" in str(error)
            assert "on docker:a a boot failed: prepare on a" in str(error)


@pytest.mark.parametrize("num_hosts", [1, 2])
@pytest.mark.parametrize("sessions", [group(), group(2, 4)], ids=["many", "few"])
def test_a_policy_that_breaks_all_that_was_set_up_has_no_more_tries_for_it(monkeypatch, num_hosts, sessions):
    """Each set-up ended the rest of its host, which forgave the faults that followed: 65 tries a session and more."""
    hosts = [Host(name, 16, faults={"evaluate": "EvaluatorError"}) for name in "ab"[:num_hosts]]
    simulation = Simulation(monkeypatch, hosts)
    simulation.run(sessions)
    assert [type(error) for error in simulation.lost] == [EvaluatorError] * len(sessions)
    tries = sum(call == "reset" for host in hosts for call, _ in host.calls)
    assert tries == simulation.config.max_attempts * len(sessions)


def test_after_an_outage_that_was_told_the_next_sessions_are_served(monkeypatch):
    outage = between(65, 1000, {"reset": "DesktopSetupError"})
    simulation = Simulation(monkeypatch, [Host("a", 16, faults=outage)], start_s=60)

    async def later(simulation):
        await asyncio.sleep(2000)
        simulation.later = await asyncio.gather(*map(simulation.session, group(2, 8)))

    simulation.run(group(4, 8), beside=later)
    assert simulation.lost and simulation.later == ["scored"] * 16


def test_tasks_that_no_host_can_set_up_lose_their_own_sessions_and_hold_up_nobody(monkeypatch):
    bad = {"task-3", "task-7", "task-11"}

    def cannot(task_id):
        return "DesktopSetupError" if task_id in bad else None

    hosts = [Host(name, 16, faults={"reset": cannot}) for name in "ab"]
    simulation = Simulation(monkeypatch, hosts)
    simulation.run(group())
    lost = [task for task, outcome in zip(group(), simulation.outcomes, strict=True) if outcome != "scored"]
    assert Counter(lost) == dict.fromkeys(bad, 8)
    assert simulation.now - 1000 < 30 + 4 * 60 + 120


def test_tasks_whose_set_up_fails_slowly_do_not_lose_the_next_steps(monkeypatch):
    """They ended last, dropped both hosts and were the first to ask them: all sessions of the next steps were lost."""
    bad = ("task-0", "task-1", "task-2")

    def cannot(task_id):
        return "DesktopSetupError" if task_id in bad else None

    hosts = [Host(name, 64, {"reset": 120.0}, {"reset": cannot}) for name in "ab"]
    simulation = Simulation(monkeypatch, hosts)

    async def second_step(simulation):
        await asyncio.sleep(500)
        simulation.second = await asyncio.gather(*map(simulation.session, group()))

    simulation.run(group(), beside=second_step)
    for outcomes in (simulation.outcomes, simulation.second):
        assert {task for task, outcome in zip(group(), outcomes, strict=True) if outcome != "scored"} == {*bad}


def test_a_retry_goes_to_another_host(monkeypatch):
    class Once(Host):
        def once(self, task_id):
            return "DesktopSetupError" if len([c for c in self.calls if c[0] == "reset"]) == 1 else None

    first, second = Once("a", 2), Once("b", 2)
    first.faults, second.faults = {"reset": first.once}, {}
    simulation = Simulation(monkeypatch, [first, second])
    assert simulation.run(["t"]) == ["scored"]
    assert [len([c for c in host.calls if c[0] == "reset"]) for host in (first, second)] == [1, 1]


def test_what_one_node_lacks_costs_that_node_only(monkeypatch, caplog):
    """It closed the pool for everybody: 126 healthy desktops, every lease refused."""
    good, bad = Host("a", 16), Host("b", 2, faults={"prepare": "ConfigError"})
    simulation = Simulation(monkeypatch, [good, bad])
    with caplog.at_level(logging.WARNING):
        simulation.run(group())
    assert not simulation.lost
    assert simulation.metrics["environment/hosts_dropped"] == 1
    assert told(caplog, "host docker:b is dropped") == 1 and told(caplog, "prepare on b") >= 1


def test_a_node_that_is_mended_is_used_again(monkeypatch):
    bad = Host("b", 16, faults=between(0, 60, {"prepare": "ConfigError"}))
    simulation = Simulation(monkeypatch, [Host("a", 16), bad])
    simulation.run(group())
    assert not simulation.lost and simulation.metrics["environment/hosts_dropped"] == 0
    assert Counter(call for call, _ in bad.calls)["evaluate"] > 10


@pytest.mark.parametrize("num_hosts", [1, 2])
def test_what_all_nodes_lack_is_told_at_once(monkeypatch, num_hosts):
    hosts = [Host(name, 4, faults={"prepare": "ConfigError"}) for name in "ab"[:num_hosts]]
    simulation = Simulation(monkeypatch, hosts, start_s=0)
    simulation.run(group(2, 2))
    assert [type(error) for error in simulation.lost] == [ConfigError] * 4
    assert simulation.now - 1000 < 5


def test_desktops_leave_a_host_that_boots_none_for_one_with_room(monkeypatch):
    good, bad = Host("a", 32), Host("b", 16, faults={"prepare": "DesktopBootError"})
    simulation = Simulation(monkeypatch, [good, bad], num_desktops=24, desktops_per_worker=4, start_s=120)
    simulation.run(group())
    assert not simulation.lost
    assert {worker.host for worker in simulation.actor._workers.running} <= {"docker:a"}


def test_a_call_of_rays_that_raises_ends_no_loop(monkeypatch):
    """`ray.nodes()` raised once, and no desktop was ever placed again."""
    simulation = Simulation(monkeypatch, [Host("a", 16)])
    nodes, failures = simulation.nodes, iter([RuntimeError("GCS"), RuntimeError("GCS"), None, RuntimeError("GCS")])

    def failing():
        error = next(failures, None)
        if error is not None:
            raise error
        return nodes()

    simulation.nodes = failing
    simulation.run(group(4, 4))
    assert not simulation.lost
    assert simulation.metrics["environment/loop_restarts"] == 3


def test_an_error_in_a_slots_coroutine_costs_its_desktop_once(monkeypatch):
    simulation = Simulation(monkeypatch, [Host("a", 4)], max_attempts=5)

    async def break_it(simulation):
        metrics = simulation.actor._metrics
        sound, left = metrics.desktop_is, [3]

        def broken(slot, state):
            if left[0] and state is DesktopState.IDLE:
                left[0] -= 1
                raise RuntimeError("a bug")
            sound(slot, state)

        metrics.desktop_is = broken
        await asyncio.sleep(600)
        simulation.idle = metrics.now["desktops_idle"]

    simulation.run(group(2, 8), beside=break_it)
    assert simulation.metrics["environment/loop_restarts"] == 3
    assert simulation.idle == 4 and not simulation.lost


def test_a_bug_that_stays_is_told_to_those_who_wait(monkeypatch):
    simulation = Simulation(monkeypatch, [Host("a", 4)], start_s=0)

    def failing():
        raise RuntimeError("for ever")

    simulation.nodes = failing
    simulation.run(["t"])
    assert isinstance(simulation.outcomes[0], DesktopBootError) and "for ever" in str(simulation.outcomes[0])


def test_a_session_whose_desktops_fail_one_by_one_is_dropped_as_before(monkeypatch):
    simulation = Simulation(monkeypatch, [Host("a", 2, faults={"reset": "DesktopSetupError"})])
    simulation.run(["t"])
    assert [type(error) for error in simulation.outcomes] == [DesktopSetupError]
