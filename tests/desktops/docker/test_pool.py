"""A pool of Docker desktops on a real engine: many at once, and what dies under them."""

import asyncio
import os
import signal
import time
import uuid

import pytest
from support.desktop_harness import eventually

pytest.importorskip("desktop_env")
pytest.importorskip("ray")

from support.disturbed import TASK, play_session  # noqa: E402
from support.local_ray import start_ray  # noqa: E402

from arpo_verl.desktops.config import EnvironmentConfig  # noqa: E402
from arpo_verl.desktops.osworld.docker_containers import OWNER_LABEL  # noqa: E402
from arpo_verl.desktops.pool.desktop_pool import DesktopPool  # noqa: E402
from arpo_verl.tasks.expert import expert_replies  # noqa: E402

pytestmark = pytest.mark.docker

PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def own_ray(engine, no_ray):
    start_ray(_node_ip_address="127.0.0.1")


@pytest.fixture(scope="module")
def options(vm, tmp_path_factory):
    """An environment section: small screens, so that many desktops share two cores."""
    return {
        "provider": "docker",
        "provider_options": {"environment": {"SCREEN": "640x480"}},
        "screen_size": [640, 480],
        "path_to_vm": str(vm),
        "cache_dir": str(tmp_path_factory.mktemp("cache")),
        "action_pause_s": 0.5,
        "evaluate_pause_s": 1.0,
        "retry_backoff_s": 0.5,
        "health_interval_s": 5.0,
    }


@pytest.fixture
def make_pool(own_ray, options):
    pools = []

    def make(num_desktops, **more):
        config = EnvironmentConfig(**{**options, "num_desktops": num_desktops, **more})
        pools.append(DesktopPool.connect(config, name=uuid.uuid4().hex))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def idle(pool, number):
    eventually(lambda: pool.status()["desktops_idle"] == number, PATIENCE_S)


def none_is_left(engine):
    """A pool that closes while a desktop boots ends its process, and the process's reaper removes the container."""
    eventually(lambda: engine.client.containers.list(all=True, ignore_removed=True) == [], PATIENCE_S)


def ports_of(containers):
    published = [container.attrs["NetworkSettings"]["Ports"].values() for container in containers]
    return [int(hosts[0]["HostPort"]) for ports in published for hosts in ports]


async def solve(pool, hold=None):
    async with pool.lease(TASK.task_id) as desktop:
        await desktop.reset(TASK)
        if hold is not None:
            await hold.wait()
        for reply in expert_replies(TASK.task_id):
            for action in reply.actions:
                await desktop.step(action)
        return (await desktop.evaluate()).score


@pytest.mark.parametrize("number", [4, pytest.param(8, marks=pytest.mark.release)])
def test_many_desktops_at_once_beside_another_pool(make_pool, engine, capsys, number):
    started = time.monotonic()
    pool = make_pool(number, desktops_per_worker=number // 2)
    idle(pool, number)
    booted_s = time.monotonic() - started
    other = make_pool(2)
    idle(other, 2)
    containers = engine.client.containers.list(ignore_removed=True)
    ports = ports_of(containers)
    assert len(containers) == number + 2 and len(set(ports)) == len(ports) == 4 * len(containers)
    together = asyncio.Barrier(number)

    async def all_of_them():
        return await asyncio.gather(*(solve(pool, together) for _ in range(number)))

    started = time.monotonic()
    assert asyncio.run(all_of_them()) == [1.0] * number
    played_s = time.monotonic() - started
    other.close()
    eventually(
        lambda: len({c.labels[OWNER_LABEL] for c in engine.client.containers.list(ignore_removed=True)}) == 2,
        PATIENCE_S,
    )
    idle(pool, number)
    pool.close()
    none_is_left(engine)
    with capsys.disabled():
        print(f"\n{number} desktops booted in {booted_s:.1f} s, played and evaluated together in {played_s:.1f} s")


@pytest.fixture
def play_disturbed(make_pool, policy, tokenizer, options, tmp_path):
    """One session of veRL's agent loop on a pool of two desktops; its reward and the pool's counters."""
    section = {**options, "num_desktops": 2, "desktops_per_worker": 1, "max_attempts": 5}

    def play(disturb):
        pool = make_pool(2, desktops_per_worker=1, max_attempts=5)
        idle(pool, 2)
        episode = play_session(policy, tokenizer, pool, section, TASK, disturb, tmp_path)
        output = asyncio.run(asyncio.wait_for(episode, PATIENCE_S))
        idle(pool, 2)
        metrics = pool.metrics()
        pool.close()
        return output.reward_score, metrics

    return play


def test_a_container_killed_in_an_episode_costs_an_attempt_and_is_not_scored(play_disturbed, engine, tmp_path):
    def kill_all():
        for container in engine.client.containers.list(ignore_removed=True):
            container.kill()

    reward, metrics = play_disturbed(kill_all)
    assert reward == 1.0
    assert len(list(tmp_path.glob("*/*/episode.json"))) == 1, "nothing of the lost attempt is recorded"
    assert metrics["environment/faults/lost"] >= 1
    none_is_left(engine)


def test_an_engine_that_is_killed_and_started_again_drops_no_session(play_disturbed, engine, capsys):
    def restart():
        engine.kill()
        engine.start()

    started = time.monotonic()
    reward, _ = play_disturbed(restart)
    assert reward == 1.0
    none_is_left(engine)
    with capsys.disabled():
        print(f"\nan engine killed and started again in an episode: whole in {time.monotonic() - started:.1f} s")


def test_a_killed_worker_leaves_no_container_and_the_others_keep_theirs(play_disturbed, engine, capsys):
    killed = {}

    def kill_a_worker():
        before = engine.client.containers.list(ignore_removed=True)
        owner = before[0].labels[OWNER_LABEL]
        os.kill(int(owner.split("/")[3]), signal.SIGKILL)
        started = time.monotonic()
        eventually(lambda: owner not in owners(engine), PATIENCE_S)
        killed["gone_s"] = time.monotonic() - started
        killed["kept"] = {c.id for c in before if c.labels[OWNER_LABEL] != owner} <= {
            c.id for c in engine.client.containers.list(ignore_removed=True)
        }

    reward, _ = play_disturbed(kill_a_worker)
    assert reward == 1.0 and killed["kept"]
    none_is_left(engine)
    with capsys.disabled():
        print(f"\na killed worker's containers were gone after {killed['gone_s']:.1f} s")


def owners(engine):
    return {container.labels[OWNER_LABEL] for container in engine.client.containers.list(all=True, ignore_removed=True)}
