"""Leases and the lives of slots in one event loop, over workers that answer when told to."""

import asyncio
import functools
from collections import defaultdict
from types import SimpleNamespace

import pytest

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.desktop_keeper import DesktopKeeper
from arpo_verl.desktops.pool.hosts import Hosts
from arpo_verl.desktops.pool.lease_queue import BootedDesktop, LeaseQueue
from arpo_verl.desktops.pool.metrics import LeaseReport, PoolMetrics, fault_of
from arpo_verl.desktops.pool.worker import CallResult
from arpo_verl.errors import (
    DesktopBootError,
    DesktopLostError,
    DesktopSetupError,
    DesktopUnclearError,
    HostLostError,
)


class Actor:
    """A worker's actor, which answers each kind of call with futures: `answers["prepare"][0]` is the first."""

    def __init__(self):
        self.answers = defaultdict(list)
        self.call = SimpleNamespace(remote=lambda slot, generation, method: self._answer(method))
        self.renew = SimpleNamespace(remote=lambda slot: self._answer("renew"))

    def _answer(self, method):
        self.answers[method].append(asyncio.get_running_loop().create_future())
        return self.answers[method][-1]


class Worker:
    host = "somewhere"
    has_started = True

    def __init__(self, node_id, slots=()):
        self.node_id, self.slots = node_id, slots
        self.actor = Actor()
        self.started = asyncio.get_running_loop().create_future()
        self.started.set_result((node_id, self.host))


class Workers:
    """DesktopThread i's worker is on node `nodes[i]`."""

    def __init__(self, nodes):
        self.by_node = {name: Worker(name, [slot for slot, node in enumerate(nodes) if node == name]) for name in nodes}
        self.running = list(self.by_node.values())
        self.generations = dict.fromkeys(range(len(nodes)), 1)
        self._nodes = nodes

    def is_placed(self, slot):
        return True

    async def worker_of(self, slot):
        return self.by_node[self._nodes[slot]]


def make_queue(num_desktops=2, **options):
    config = EnvironmentConfig(num_desktops=num_desktops, **options)
    metrics = PoolMetrics(num_desktops)
    return config, metrics, LeaseQueue(metrics, Hosts())


def make_keeper(config, workers, queue, metrics):
    return DesktopKeeper(config, workers, queue, metrics, Hosts())


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def in_a_loop(test):
    """Run an async test in an event loop of its own, which cancels what is still running at its end."""

    @functools.wraps(test)
    def run(*args, **options):
        asyncio.run(test(*args, **options))

    return run


@in_a_loop
async def test_boots_at_a_time_are_bounded_on_each_host_by_itself():
    config, metrics, queue = make_queue(5, max_boots_per_host=2)
    workers = Workers(["a", "a", "a", "a", "b"])
    keeper = make_keeper(config, workers, queue, metrics)
    keeping = [asyncio.create_task(keeper.keep(slot)) for slot in range(5)]  # noqa: F841
    await settle()
    a, b = (workers.by_node[name].actor.answers["prepare"] for name in "ab")
    begun = [(len(a), len(b))]
    a[0].set_result(CallResult())
    await settle()
    begun.append((len(a), len(b)))
    assert metrics.now["desktops_idle"] == 1 and metrics.now["desktops_booting"] == 4
    assert begun == [(2, 1), (3, 1)]


@in_a_loop
async def test_without_a_number_three_fifths_of_a_hosts_desktops_boot_at_once_and_never_fewer_than_eight():
    config, metrics, queue = make_queue(39)
    workers = Workers(["a"] * 30 + ["b"] * 9)
    keeper = make_keeper(config, workers, queue, metrics)
    keeping = [asyncio.create_task(keeper.keep(slot)) for slot in range(39)]  # noqa: F841
    await settle()
    begun = [len(workers.by_node[name].actor.answers["prepare"]) for name in "ab"]
    assert begun == [18, 8]


@in_a_loop
async def test_an_idle_desktop_that_is_found_dead_is_renewed_before_anybody_gets_it():
    config, metrics, queue = make_queue(1, health_interval_s=0.01)
    workers = Workers(["a"])
    answers = workers.by_node["a"].actor.answers
    keeping = asyncio.create_task(make_keeper(config, workers, queue, metrics).keep(0))  # noqa: F841
    await settle()
    answers["prepare"][0].set_result(CallResult())
    while not answers["is_ready"]:
        await asyncio.sleep(0.005)
    acquiring = asyncio.create_task(queue.acquire("lease", "t"))
    await settle()
    assert not acquiring.done(), "a desktop that is being looked at is nobody's"
    answers["is_ready"][0].set_result(CallResult(value=False))
    await settle()
    states = [metrics.states[0][0].value]
    answers["renew"][0].set_result(2)
    await settle()
    states.append(metrics.states[0][0].value)
    answers["prepare"][1].set_result(CallResult())
    grant = await acquiring
    states.append(metrics.states[0][0].value)
    assert (grant.generation, states) == (2, ["dead", "booting", "busy"])
    assert metrics.collect()["environment/faults/idle"] == 1.0


@in_a_loop
async def test_the_older_batch_is_served_first_and_of_one_who_came_first():
    _, _, queue = make_queue(1)
    order = []

    async def wait(number, batch):
        await queue.acquire(f"wait-{number}", "t", (), batch)
        order.append(number)

    waiting = [asyncio.create_task(wait(number, batch)) for number, batch in enumerate((2, 2, 1))]
    await settle()
    for number in range(3):
        queue.offer(BootedDesktop(Worker("a"), 0, number))
        await settle()
    await asyncio.gather(*waiting)
    assert order == [2, 0, 1]


@pytest.mark.parametrize("comes_up", [True, False])
@in_a_loop
async def test_who_avoids_a_host_waits_for_another_whose_desktops_all_boot(comes_up):
    """Where they all booted at once, a session went back to the host that had failed it, until it was dropped."""
    _, _, queue = make_queue(2)
    bad, good = (BootedDesktop(Worker(name), slot, 1) for slot, name in enumerate(("bad", "good")))
    queue.offer(bad)
    with queue.boots("good"):
        grant = asyncio.create_task(queue.acquire("lease", "t", {"bad"}))
        await settle()
        assert not grant.done()
    if comes_up:
        queue.offer(good)
    assert (await grant).node_id == ("good" if comes_up else "bad")


@pytest.mark.parametrize(
    ("report", "attempts"),
    [
        (LeaseReport(DesktopSetupError), [True, True, False, False, False]),
        (LeaseReport(DesktopLostError), [True, True, False, False, False]),
        (LeaseReport(DesktopBootError), [True, True, False, False, False]),
        (LeaseReport(HostLostError), [True] * 5),
        (LeaseReport(DesktopUnclearError), [True] * 5),
        (LeaseReport(DesktopSetupError, {"reset": [1.0]}), [True] * 5),
        (LeaseReport(), [True] * 5),
    ],
)
@in_a_loop
async def test_a_set_up_that_fails_on_a_dropped_host_is_no_attempt(report, attempts):
    """After the set-up the policy was at work: whoever breaks several desktops at once has no more tries for it."""
    _, _, queue = make_queue(5)
    for slot in range(5):
        queue.offer(BootedDesktop(Worker("a"), slot, 1))
        await queue.acquire(f"lease-{slot}", f"task-{slot % 2}")
    assert [queue.release(f"lease-{slot}", report) for slot in range(5)] == attempts


def test_an_error_of_a_factorys_own_class_counts_as_the_packages_nearest():
    """Its class need not be known where it is read."""

    class NoLicense(DesktopSetupError):
        pass

    assert fault_of(NoLicense("")) is DesktopSetupError and fault_of(ValueError("")) is None
    assert fault_of(HostLostError("")) is HostLostError and fault_of(DesktopLostError("")) is DesktopLostError


@in_a_loop
async def test_a_dead_hosts_desktops_end_idle_and_leased_and_late_reports_do_no_harm():
    _, metrics, queue = make_queue(3)
    dead, live = Worker("a"), Worker("b")
    desktops = [BootedDesktop(worker, slot, 1) for slot, worker in enumerate((dead, dead, live))]
    for desktop in desktops:
        queue.offer(desktop)
    await queue.acquire("lease", "t")
    queue.host_lost(dead)
    assert [desktop.done.done() for desktop in desktops] == [True, True, False]
    assert desktops[0].done.result().fault is desktops[1].done.result().fault is HostLostError
    queue.release("lease", LeaseReport(HostLostError))  # the holder notices too
    assert list(queue.idle) == desktops[2:] and not queue.leased
    assert metrics.collect()["environment/faults/host"] == 2


@in_a_loop
async def test_a_release_that_overtakes_its_acquire_gives_the_lease_up():
    _, _, queue = make_queue(1)
    queue.offer(BootedDesktop(Worker("a"), 0, 1))
    queue.release("lease", LeaseReport())
    grant = await queue.acquire("lease", "t")
    assert isinstance(grant.error, DesktopLostError) and (len(queue.idle), len(queue.leased)) == (1, 0)


def test_levels_are_means_over_the_time_since_the_last_look():
    clock = SimpleNamespace(now=0.0)
    metrics = PoolMetrics(2, lambda: clock.now)
    metrics.lease_began(0, waited_s=1.5)
    metrics.rollouts_wait(4)
    clock.now = 3.0
    metrics.rollouts_wait(0)
    clock.now = 4.0
    values = metrics.collect()
    assert values["environment/desktops_busy"] == 1.0 and values["environment/desktops_unplaced"] == 1.0
    assert values["environment/rollouts_waiting"] == 3.0
    assert values["environment/busy_share"] == 0.5
    assert values["environment/lease_wait_s/max"] == 1.5
    clock.now = 5.0
    assert metrics.collect()["environment/rollouts_waiting"] == 0.0


@pytest.mark.parametrize("then", ["a desktop comes", "its client leaves", "a desktop came"])
@pytest.mark.parametrize("knows", [False, True])
@in_a_loop
async def test_who_is_cancelled_in_the_queue_takes_no_desktop(then, knows):
    """As Ray cancels it with the rollout's own task; it knows of it in the event loop's next round."""
    _, metrics, queue = make_queue(1)
    desktop = BootedDesktop(Worker("a"), 0, 1)
    acquiring = asyncio.create_task(queue.acquire("lease", "t"))
    await settle()
    if then == "a desktop came":
        queue.offer(desktop)
    acquiring.cancel()
    if knows:
        await settle()
    if then == "a desktop comes":
        queue.offer(desktop)
    elif then == "its client leaves":
        queue.release("lease", LeaseReport())
        queue.offer(desktop)
    await settle()
    assert (desktop in queue.idle) == (then != "a desktop came") == (not desktop.done.done())
    assert (acquiring.cancelled(), list(queue.leased), metrics.now["rollouts_waiting"]) == (True, [], 0)
