"""The desktop pool on a real Ray, over the scripted desktop.

The tests share two pools, since starting one takes seconds. What a desktop does wrong comes with the task that it is
given, and each test has tasks of its own. Times are limits only: nothing here depends on how fast anything is.
"""

import asyncio
import json
import random
import re
import time
import uuid
from collections import Counter

import pytest
from support.desktop_harness import eventually, until

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.desktop_pool import DesktopPool
from arpo_verl.errors import (
    ConfigError,
    DesktopError,
    DesktopLostError,
    DesktopSetupError,
    EvaluatorError,
    HostLostError,
)
from arpo_verl.types import Click, Fail, Finish, GuestRequest, Point, Task

INSIDE = Click(Point(10, 10))
ERRORS = {"reset": DesktopSetupError, "step": DesktopLostError, "evaluate": EvaluatorError}
SIZE = 4
PATIENCE_S = 120.0


def make_task(name, **script):
    """A task of that name, and what the fake desktop is to do under it."""
    return Task(f"{name}-{uuid.uuid4().hex[:6]}", "click the square", {"fake": script})


TASK = Task("t1", "click the square", {"id": "t1", "evaluator": {"func": "exact_match"}})


@pytest.fixture(scope="module")
def make_pool(local_ray):
    pools = []

    def make(num_desktops=1, script=None, name=None, **options):
        config = EnvironmentConfig(
            provider="fake",
            num_desktops=num_desktops,
            provider_options=script or {},
            screen_size=(320, 240),
            **{"boot_timeout_s": PATIENCE_S, "max_boot_failures": 1000, **options},
        )
        pools.append(DesktopPool.connect(config, name=name or f"pool-{uuid.uuid4().hex}"))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture(scope="module")
def status_file(tmp_path_factory):
    """Where the patient pool says what it is at."""
    return tmp_path_factory.mktemp("run") / "pool.json"


@pytest.fixture(scope="module")
def patient_pool(make_pool, status_file):
    """Four desktops in two worker processes, which nothing but a fault takes away."""
    return make_pool(SIZE, desktops_per_worker=2, status_file=str(status_file))


@pytest.fixture(scope="module")
def hurried_pool(make_pool):
    """As many with short limits. Two of its desktops have gone wrong before anybody used them."""
    script = {"desktops": {"desktop-0.1": {"hang": {"boot": [1]}}, "desktop-1.1": {"fail": {"check": [1]}}}}
    limits = {f"{call}_timeout_s": 5 for call in ERRORS}
    return make_pool(
        SIZE, script, boot_timeout_s=20, lease_idle_timeout_s=12, health_interval_s=1, wait_s=0.1, **limits
    )


@pytest.fixture
def pool(patient_pool):
    """The patient pool, all its desktops idle and its counters at zero."""
    eventually(lambda: patient_pool.status()["desktops_idle"] == SIZE, PATIENCE_S)
    patient_pool.metrics()
    return patient_pool


async def play(pool, task=TASK, actions=(INSIDE, Finish())):  # noqa: B008
    async with pool.lease(task.task_id) as desktop:
        await desktop.reset(task)
        for action in actions:
            await desktop.step(action)
        return (await desktop.evaluate()).score


async def says(pool, name, number):
    return (await asyncio.to_thread(pool.status))[name] == number


async def all_serve(pool):
    """Whether every desktop of the pool can be held at the same time."""
    together = asyncio.Barrier(SIZE)

    async def hold():
        async with pool.lease(TASK.task_id) as desktop:
            await desktop.reset(TASK)
            await together.wait()

    await asyncio.wait_for(asyncio.gather(*(hold() for _ in range(SIZE))), PATIENCE_S)
    return True


def test_an_episode_gets_screenshots_and_a_verdict(pool):
    async def fail():
        task = Task("t2", "impossible", {"id": "t2", "evaluator": {"func": "infeasible"}})
        return await play(pool, task, [Fail()])

    async def run():
        async with pool.lease("t1") as desktop:
            first = await desktop.reset(TASK)
            second = await desktop.step(INSIDE)
            return first, second, await desktop.evaluate()

    first, second, verdict = asyncio.run(run())
    assert first.screenshot.startswith(b"\x89PNG") and second.screenshot.startswith(b"\x89PNG")
    assert first.screenshot != second.screenshot
    assert verdict.score == 1.0
    assert asyncio.run(fail()) == 1.0


def test_a_program_acts_on_a_leased_desktop_by_requests(pool):
    asked = GuestRequest("POST", "/execute", "application/json", b"pyautogui.click(10, 10)")

    async def run():
        async with pool.lease("t1") as desktop:
            first = await desktop.reset(TASK)
            assert (await desktop.look()).screenshot == first.screenshot
            assert (await desktop.ask(asked)).status == 200
            assert (await desktop.look()).screenshot != first.screenshot
            return await desktop.evaluate()

    assert asyncio.run(run()).score == 1.0


def test_what_every_desktop_is_at_can_be_read_from_a_file(pool, status_file):
    tasks = {f"task-{number}" for number in range(SIZE)}

    def state():
        return json.loads(status_file.read_text())

    def leased(state):
        return {desktop["task_id"] for desktop in state["desktops"]}

    async def run():
        await until(status_file.exists, PATIENCE_S)
        began = time.time()
        holders = [pool.lease(task_id) for task_id in sorted(tasks)]
        for holder in holders:
            await holder.__aenter__()
        waiter = asyncio.create_task(play(pool))
        await until(lambda: state()["waiting"] == 1 and leased(state()) == tasks, PATIENCE_S)
        busy = state()
        for holder in holders:
            await holder.__aexit__(None, None, None)
        await waiter
        await until(lambda: {desktop["state"] for desktop in state()["desktops"]} == {"idle"}, PATIENCE_S)
        return began, busy, state()

    began, busy, idle = asyncio.run(run())
    assert {desktop["state"] for desktop in busy["desktops"]} == {"busy"}
    assert all(began <= desktop["since"] <= busy["time"] for desktop in busy["desktops"])
    assert [desktop["name"].split(".")[0] for desktop in busy["desktops"]] == [f"desktop-{i}" for i in range(SIZE)]
    assert all(isinstance(desktop["host"], str) and desktop["host"] for desktop in busy["desktops"])
    assert idle["waiting"] == 0 and leased(idle) == {None}
    assert idle["dropped"] == {}


def test_episodes_beyond_the_desktops_wait_in_turn_and_are_counted(pool):
    order = []

    async def one(number):
        async with pool.lease("t1") as desktop:
            order.append(number)
            await desktop.reset(TASK)

    async def run():
        # All but one desktop are held, so that those who wait are served one after the other.
        free, held = asyncio.Event(), []

        async def hold(event):
            async with pool.lease("t1") as desktop:
                held.append(desktop)
                await event.wait()

        last = asyncio.Event()
        holders = [asyncio.create_task(hold(free)) for _ in range(SIZE - 1)] + [asyncio.create_task(hold(last))]
        await until(lambda: len(held) == SIZE, PATIENCE_S)
        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(one(number)))
            # Turns count from when a call has reached the pool.
            await until(lambda: says(pool, "rollouts_waiting", len(tasks)), PATIENCE_S)
        assert (await asyncio.to_thread(pool.status))["desktops_busy"] == SIZE
        last.set()
        await asyncio.gather(*tasks)
        free.set()
        await asyncio.gather(*holders)

    asyncio.run(run())
    eventually(lambda: pool.status()["desktops_idle"] == SIZE, PATIENCE_S)
    metrics = pool.metrics()
    assert order == list(range(5))
    assert metrics["environment/leases"] == SIZE + 5
    assert metrics["environment/resets"] == 5
    assert metrics["environment/lease_wait_s/max"] > 0 and metrics["environment/rollouts_waiting"] > 0
    assert 0 < metrics["environment/busy_share"] <= 1
    levels = [metrics[f"environment/desktops_{state}"] for state in ("unplaced", "booting", "idle", "busy", "dead")]
    assert sum(levels) == pytest.approx(SIZE, rel=0.01)
    assert metrics["environment/nodes"] == 1
    assert pool.metrics()["environment/leases"] == 0


def test_a_reset_never_blocks_a_rollout_that_a_ready_desktop_can_serve(pool):
    async def run():
        stuck = asyncio.create_task(play(pool, make_task("stuck", hang={"reset": [1]})))
        await until(lambda: says(pool, "desktops_busy", 1), PATIENCE_S)
        scores = [await play(pool) for _ in range(2 * SIZE)]
        still_stuck = not stuck.done()
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)
        return scores, still_stuck

    scores, still_stuck = asyncio.run(run())
    assert scores == [1.0] * 2 * SIZE and still_stuck
    # Left in the middle of a call, it costs the desktop, which may be at it for long, and is no fault of anybody's.
    assert asyncio.run(all_serve(pool))
    metrics = pool.metrics()
    assert sum(value for name, value in metrics.items() if "/faults/" in name) == 0


@pytest.mark.parametrize("call", list(ERRORS))
def test_a_fault_costs_the_desktop_and_is_counted(pool, call):
    with pytest.raises(ERRORS[call], match=f"scripted failure of {call} call 1"):
        asyncio.run(play(pool, make_task("faulty", fail={call: [1]})))
    assert asyncio.run(all_serve(pool))
    metrics = pool.metrics()
    kinds = {"reset": "setup", "step": "lost", "evaluate": "evaluator"}
    faults = {kind: metrics[f"environment/faults/{kind}"] for kind in (*kinds.values(), "boot", "host", "idle")}
    assert faults == {kind: float(kind == kinds[call]) for kind in faults}
    assert metrics["environment/boots"] >= 1, "the desktop was replaced"


def test_a_fault_that_the_holder_caught_still_costs_the_desktop(pool):
    async def run():
        async with pool.lease("t1") as desktop:
            await desktop.reset(make_task("faulty", fail={"step": [1]}))
            with pytest.raises(DesktopLostError, match="scripted failure"):
                await desktop.step(INSIDE)
            with pytest.raises(DesktopLostError, match="already failed"):
                await desktop.step(INSIDE)

    asyncio.run(run())
    assert asyncio.run(all_serve(pool))
    assert pool.metrics()["environment/faults/lost"] == 1


def test_a_dead_worker_process_is_replaced_with_all_its_desktops(pool):
    async def run():
        """All desktops are held when one takes its process, and so its neighbour, along."""
        held, dead = asyncio.Barrier(SIZE), asyncio.Event()

        async def other():
            async with pool.lease("t1") as desktop:
                await desktop.reset(TASK)
                await held.wait()
                await dead.wait()
                return await desktop.step(INSIDE)

        async def deadly():
            task = make_task("deadly", die={"step": [1]})
            async with pool.lease(task.task_id) as desktop:
                await desktop.reset(task)
                await held.wait()
                try:
                    await desktop.step(INSIDE)
                finally:
                    dead.set()

        return await asyncio.gather(deadly(), *(other() for _ in range(SIZE - 1)), return_exceptions=True)

    outcomes = asyncio.run(run())
    assert isinstance(outcomes[0], HostLostError) and "died during step" in str(outcomes[0])
    assert sum(isinstance(outcome, HostLostError) for outcome in outcomes) == 2, "the process held two"
    assert asyncio.run(all_serve(pool))
    assert pool.metrics()["environment/faults/host"] == 2


def test_a_cancelled_episode_and_a_cancelled_wait_lose_no_desktop(pool):
    async def run():
        held = asyncio.Barrier(SIZE + 1)

        async def hold():
            async with pool.lease("t1"):
                await held.wait()
                await asyncio.Event().wait()

        holders = [asyncio.create_task(hold()) for _ in range(SIZE)]
        await held.wait()
        waiting = asyncio.create_task(play(pool))

        await until(lambda: says(pool, "rollouts_waiting", 1), PATIENCE_S)
        for task in (waiting, *holders):
            task.cancel()
        await asyncio.gather(waiting, *holders, return_exceptions=True)
        return await all_serve(pool)

    assert asyncio.run(run())


def test_a_dropped_session_is_counted(pool):
    asyncio.run(pool.report_drop(TASK.task_id))
    assert pool.metrics()["environment/dropped_sessions"] == 1


def test_two_configs_in_one_job_are_refused(make_pool):
    name = f"pool-{uuid.uuid4().hex}"
    make_pool(1, name=name)
    with pytest.raises(ConfigError, match="another environment section"):
        asyncio.run(play(make_pool(2, name=name)))


@pytest.mark.release
def test_a_run_ends_when_no_desktop_ever_boots(make_pool):
    # A boot's time bounds the start of its worker process too, which takes seconds on a busy machine.
    pool = make_pool(1, {"fail": {"boot": [-1]}}, max_boot_failures=2, boot_timeout_s=15)
    told = r"\d+ boots failed in a row, for .*scripted failure of boot"
    with pytest.raises(ConfigError, match=told):
        asyncio.run(play(pool))
    assert re.match(told, pool.refusal())


@pytest.mark.release
def test_an_outage_at_which_all_desktops_fail_together_is_waited_for(make_pool):
    """Four desktops failed at once: the eight rollouts that waited were told, seconds before one booted."""
    fails = {"fail": {"boot": [1]}}
    pool = make_pool(SIZE, {"desktops": {f"desktop-{slot}.1": fails for slot in range(SIZE)}}, max_boot_failures=SIZE)

    async def all_of_them():
        return await asyncio.gather(*(play(pool) for _ in range(2 * SIZE)))

    assert len(asyncio.run(all_of_them())) == 2 * SIZE
    assert pool.metrics()["environment/faults/boot"] == SIZE


def test_a_wrong_script_is_told_at_the_first_lease(make_pool):
    with pytest.raises(ConfigError, match="provider_options.fial is not an option; did you mean"):
        asyncio.run(play(make_pool(1, {"fial": {}})))


@pytest.mark.release
def test_hangs_and_idle_holders_cost_the_desktop_after_their_time(hurried_pool):
    async def sleep():
        async with hurried_pool.lease("sleeper") as desktop:
            await desktop.reset(TASK)
            while True:  # being looked after does not count as use
                await asyncio.sleep(1)
                if (await asyncio.to_thread(hurried_pool.status))["desktops_busy"] == 0:
                    await desktop.step(INSIDE)

    async def run():
        hanging = [play(hurried_pool, make_task("hanging", hang={call: [1]})) for call in ERRORS]
        return await asyncio.wait_for(asyncio.gather(sleep(), *hanging, return_exceptions=True), PATIENCE_S)

    seen = Counter()

    def faults(kind):
        seen.update(hurried_pool.metrics())
        return seen[f"environment/faults/{kind}"]

    eventually(lambda: faults("idle") == 1, PATIENCE_S)  # nobody has leased a desktop yet, and one has died
    slept, *hung = asyncio.run(run())
    assert isinstance(slept, DesktopLostError) and "was given up" in str(slept)
    for error, call in zip(hung, ERRORS, strict=True):
        assert isinstance(error, ERRORS[call]) and f"environment.{call}_timeout_s=5" in str(error)
    eventually(lambda: hurried_pool.status()["desktops_idle"] == SIZE, PATIENCE_S)
    assert faults("boot") >= 1, "the desktop that hung in its boot was replaced"
    assert seen["environment/leases_reclaimed"] == 1


@pytest.mark.release
def test_no_slot_is_lost_in_random_episodes(hurried_pool):
    """Faults, hangs, dead processes and cancellations in any order: at the end all desktops serve."""
    numbers = random.Random(0)
    scripts = [{"fail": {call: [1]}} for call in ERRORS for _ in range(4)]
    scripts += [{"hang": {"step": [2]}}, {"die": {"step": [1]}}, {"die": {"evaluate": [1]}}]
    scripts += [{}] * 85
    numbers.shuffle(scripts)

    async def one(script):
        actions = [INSIDE] * numbers.randint(1, 3)
        task = asyncio.create_task(play(hurried_pool, make_task("random", **script), actions))
        if numbers.random() < 0.1:
            await asyncio.sleep(numbers.random() * 0.5)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            return "cancelled"
        return "fault" if isinstance(task.exception(), DesktopError) else task.result()

    async def run():
        outcomes = await asyncio.wait_for(asyncio.gather(*map(one, scripts)), PATIENCE_S)
        return outcomes, await all_serve(hurried_pool)

    outcomes, served = asyncio.run(run())
    assert len(outcomes) == 100 and set(outcomes) <= {"fault", "cancelled", 1.0}
    assert outcomes.count("fault") > 3 and outcomes.count(1.0) > 40
    assert served
