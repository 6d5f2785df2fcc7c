"""The desktop pool on a real Ray, over the scripted desktop."""

import asyncio
import random
import time
import uuid

import pytest
import ray

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.fake import FakeEnvironment
from arpo_verl.environments.pool import DesktopPool
from arpo_verl.errors import (
    ConfigError,
    DesktopBootError,
    DesktopError,
    DesktopLostError,
    DesktopSetupError,
    EvaluatorError,
)
from arpo_verl.types import Click, Fail, Finish, Point, Task

TASK = Task("t1", "click the square", {"id": "t1", "evaluator": {"func": "exact_match"}})
INSIDE = Click(Point(10, 10))


@pytest.fixture(scope="module", autouse=True)
def local_ray():
    options = {"address": "local", "num_cpus": 2, "include_dashboard": False, "log_to_driver": False}
    try:
        ray.init(**options)
    except Exception:  # Ray gives its own start 30 s and no option to wait longer; a busy machine may need a second go
        ray.shutdown()
        ray.init(**options)
    yield
    ray.shutdown()


@pytest.fixture
def connect():
    """Make pools of fake desktops, each under its own name, and close them after the test."""
    pools = []

    def make(num_desktops=1, script=None, **options):
        options = {"boot_timeout_s": 30, "desktops_per_worker": num_desktops, **options}
        config = EnvironmentConfig(
            provider="fake", num_desktops=num_desktops, provider_options=script or {}, screen_size=(320, 240), **options
        )
        pools.append(DesktopPool.connect(config, name=f"pool-{uuid.uuid4().hex}"))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def metrics_until(pool, name, wanted, patience_s=5.0):
    """The pool's counters since the last look, once `name` has reached `wanted`: releases are not waited for."""
    total, deadline = {}, time.monotonic() + patience_s
    while total.get(name, 0) < wanted and time.monotonic() < deadline:
        add_metrics(total, pool.metrics())
        time.sleep(0.02)
    return total


def add_metrics(total, metrics):
    for key, value in metrics.items():
        earlier = total.get(key, 0.0)
        total[key] = max(earlier, value) if key.endswith(("mean", "max")) else earlier + value


async def episode(pool, actions=(INSIDE, Finish())):  # noqa: B008
    async with pool.lease() as desktop:
        await desktop.reset(TASK)
        for action in actions:
            await desktop.step(action)
        return (await desktop.evaluate()).score


def test_an_episode_gets_screenshots_and_a_verdict(connect):
    async def fail(pool):
        async with pool.lease() as desktop:
            await desktop.reset(Task("t2", "impossible", {"id": "t2", "evaluator": {"func": "infeasible"}}))
            await desktop.step(Fail())
            return (await desktop.evaluate()).score

    async def run(pool):
        async with pool.lease() as desktop:
            first = await desktop.reset(TASK)
            second = await desktop.step(INSIDE)
            return first, second, await desktop.evaluate()

    pool = connect()
    first, second, verdict = asyncio.run(run(pool))
    assert first.screenshot.startswith(b"\x89PNG") and second.screenshot.startswith(b"\x89PNG")
    assert first.screenshot != second.screenshot
    assert verdict.score == 1.0
    assert asyncio.run(fail(pool)) == 1.0


def test_episodes_beyond_the_desktops_wait_in_turn_and_are_counted(connect):
    # One desktop: two that are given back at once are granted at once, and which grant is heard first is open.
    # Turns count from when a call has reached the pool: calls made at once may overtake each other on their way there.
    pool, order, metrics = connect(1, {"seconds": {"step": 0.1}}), [], {}
    first_may_end = asyncio.Event()

    async def one(number):
        async with pool.lease() as desktop:
            order.append(number)
            await desktop.reset(TASK)
            await first_may_end.wait()
            await desktop.step(INSIDE)

    async def run():
        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(one(number)))
            waiting = -1
            while not order or waiting < number:
                now = await pool.metrics_async()
                add_metrics(metrics, now)
                waiting = now["environment/rollouts_waiting"]
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        first_may_end.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())
    add_metrics(metrics, metrics_until(pool, "environment/resets", 6 - metrics["environment/resets"]))
    assert order == list(range(6))
    assert metrics["environment/leases"] == 6
    assert metrics["environment/resets"] == 6
    assert metrics["environment/steps"] == 6
    assert metrics["environment/step_s/mean"] >= 0.1
    assert metrics["environment/lease_wait_s/max"] >= 0.2
    assert pool.metrics()["environment/leases"] == 0


def test_faults_and_hangs_cost_the_desktop_and_the_next_lease_gets_a_fresh_one(connect):
    calls = {"reset": DesktopSetupError, "step": DesktopLostError, "evaluate": EvaluatorError}
    scripts = [{how: {call: [1]}} for how in ("fail", "hang") for call in calls]
    desktops = {f"desktop-0.{generation}": script for generation, script in enumerate(scripts, start=1)}
    timeouts = {f"{call}_timeout_s": 0.4 for call in calls}
    pool = connect(1, {"desktops": desktops}, wait_s=0.1, **timeouts)
    for call, error in calls.items():
        with pytest.raises(error, match=f"scripted failure of {call} call 1"):
            asyncio.run(episode(pool))
    for call, error in calls.items():
        with pytest.raises(error, match=f"environment.{call}_timeout_s=0.4"):
            asyncio.run(episode(pool))
    assert asyncio.run(episode(pool)) == 1.0
    metrics = metrics_until(pool, "environment/boots", 8)
    assert [metrics[f"environment/faults/{kind}"] for kind in ("setup", "lost", "evaluator", "boot")] == [2, 2, 2, 0]


def test_a_fault_that_the_holder_caught_still_costs_the_desktop(connect):
    pool = connect(1, {"desktops": {"desktop-0.1": {"fail": {"step": [1]}}}})

    async def run():
        async with pool.lease() as desktop:
            await desktop.reset(TASK)
            with pytest.raises(DesktopLostError):
                await desktop.step(INSIDE)
            with pytest.raises(DesktopLostError, match="already failed"):
                await desktop.step(INSIDE)

    asyncio.run(run())
    assert asyncio.run(episode(pool)) == 1.0
    assert pool.metrics()["environment/faults/lost"] == 1


def test_a_desktop_that_hangs_in_boot_is_replaced(connect):
    pool = connect(1, {"desktops": {"desktop-0.1": {"hang": {"boot": [1]}}}}, boot_timeout_s=4)
    assert asyncio.run(episode(pool)) == 1.0
    assert pool.metrics()["environment/faults/boot"] >= 1


def test_a_dead_worker_process_is_replaced_with_all_its_desktops(connect):
    pool = connect(2, {"desktops": dict.fromkeys(["desktop-0.1", "desktop-1.1"], {"die": {"step": [1]}})})
    with pytest.raises(DesktopLostError, match="died during step"):
        asyncio.run(episode(pool))

    async def both():
        return await asyncio.gather(episode(pool), episode(pool))

    # The second desktop died with its process while it stood ready: leasing it is one more fault, never a hang.
    for _ in range(2):
        try:
            scores = asyncio.run(both())
            break
        except DesktopLostError:
            continue
    assert scores == [1.0, 1.0]


def test_an_idle_holder_loses_its_desktop(connect):
    pool = connect(1, lease_idle_timeout_s=0.6)

    async def run():
        async with pool.lease() as sleeper:
            await sleeper.reset(TASK)
            score = await asyncio.wait_for(episode(pool), 10)
            with pytest.raises(DesktopLostError, match="was given up"):
                await sleeper.step(INSIDE)
        return score

    assert asyncio.run(run()) == 1.0
    assert pool.metrics()["environment/leases_reclaimed"] == 1


def test_a_cancelled_episode_and_a_cancelled_wait_lose_no_desktop(connect):
    pool = connect(1)

    async def run():
        async with pool.lease():
            waiting = asyncio.create_task(episode(pool))
            await asyncio.sleep(0.1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        return await asyncio.wait_for(episode(pool), 10)

    assert asyncio.run(run()) == 1.0


def test_waiting_rollouts_are_told_when_no_desktop_boots(connect):
    pool = connect(1, {"fail": {"boot": [-1]}}, max_boot_failures=2)
    with pytest.raises(DesktopBootError, match="2 boots failed in a row.*scripted failure of boot"):
        asyncio.run(episode(pool))


def test_a_wrong_script_is_told_at_the_first_lease(connect):
    with pytest.raises(ConfigError, match="provider_options.fial is not an option; did you mean"):
        asyncio.run(episode(connect(1, {"fial": {}})))


def test_two_configs_in_one_job_are_refused():
    name = f"pool-{uuid.uuid4().hex}"
    first = DesktopPool.connect(EnvironmentConfig(provider="fake", num_desktops=1), name)
    second = DesktopPool.connect(EnvironmentConfig(provider="fake", num_desktops=2), name)
    with pytest.raises(ConfigError, match="another environment section"):
        asyncio.run(episode(second))
    first.close()


def test_a_desktop_boots_while_its_last_holder_generates(connect):
    """The clean desktop waits ready: a lease after a pause costs no boot."""
    pool = connect(1, {"seconds": {"boot": 0.5}, "desktops": {"desktop-0.1": {"fail": {"step": [1]}}}})
    with pytest.raises(DesktopLostError):
        asyncio.run(episode(pool))
    metrics_until(pool, "environment/boots", 2)
    asyncio.run(pool.report_drop(TASK.task_id))
    assert asyncio.run(episode(pool)) == 1.0
    metrics = metrics_until(pool, "environment/resets", 1)
    assert metrics["environment/lease_wait_s/max"] < 0.3
    assert metrics["environment/dropped_sessions"] == 1


def test_no_slot_is_lost_in_200_random_episodes(connect):
    """Faults, hangs, dead processes and cancellations in any order: at the end both workers' desktops all serve."""
    numbers = random.Random(0)
    script = {
        "fail": {"boot": [], "reset": [7], "step": [9], "evaluate": [4]},
        "hang": {"step": [15]},
        "die": {"step": [21]},
    }
    pool = connect(6, script, desktops_per_worker=3, step_timeout_s=0.8, wait_s=0.1, max_boot_failures=100)

    async def one():
        task = asyncio.create_task(episode(pool, [INSIDE] * numbers.randint(0, 3)))
        if numbers.random() < 0.1:
            await asyncio.sleep(numbers.random() * 0.05)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            return "cancelled"
        return "fault" if isinstance(task.exception(), DesktopError) else task.result()

    async def run():
        outcomes = await asyncio.wait_for(asyncio.gather(*(one() for _ in range(200))), 60)
        together = asyncio.Barrier(6)

        async def hold():
            async with pool.lease() as desktop:
                await desktop.reset(TASK)
                await together.wait()

        held = await asyncio.wait_for(asyncio.gather(*(hold() for _ in range(6)), return_exceptions=True), 20)
        return outcomes, held

    outcomes, held = asyncio.run(run())
    assert len(outcomes) == 200
    assert outcomes.count("fault") > 5 and outcomes.count(1.0) > 50
    assert held == [None] * 6


def test_the_fake_needs_no_pool():
    desktop = FakeEnvironment()
    desktop.reset(TASK)
    left, top, right, bottom = desktop.target
    desktop.step(Click(Point((left + right) // 2, (top + bottom) // 2)))
    assert desktop.evaluate().score == 1.0
