"""The loop and the pool on a Ray cluster of several nodes, of which some die: real nodes, on one machine.

Only `--resources` tells the nodes apart, as `ray start` would give it; the head offers no desktops, as a trainer's.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from importlib import metadata

import psutil
import pytest
import ray
from omegaconf import OmegaConf
from ray.cluster_utils import Cluster
from support.desktop_harness import PATIENCE_S, eventually
from support.local_ray import in_a_few_attempts
from support.loop_harness import DONE, HIT, ROW, ScriptedEngine, make_loop, recipe

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.desktop_pool import DesktopPool
from arpo_verl.errors import ConfigError, HostLostError
from arpo_verl.lib.own_ray import PATIENCE
from arpo_verl.plugin.run_folder import require_same_packages, require_shared
from arpo_verl.plugin.settings import connect_pool
from arpo_verl.tasks.expert import expert_replies
from arpo_verl.tasks.loader import load_tasks
from arpo_verl.types import Task

DESKTOPS = {"east": 4, "west": 2}


@pytest.fixture(scope="module")
def cluster_nodes(no_ray):
    cluster = Cluster()
    try:
        in_a_few_attempts(lambda: cluster.add_node(num_cpus=2, include_dashboard=False))
        ray.init(address=cluster.address, log_to_driver=False)
        yield Nodes(cluster)
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def nodes(cluster_nodes):
    """By name, the nodes beside the head, all of them free; tests before this one took some down and added others."""
    for name in cluster_nodes.by_name.keys() - DESKTOPS.keys():
        cluster_nodes.kill(name)
    for name in DESKTOPS.keys() - cluster_nodes.by_name.keys():
        cluster_nodes.add(name, DESKTOPS[name])
    eventually(lambda: free_units("docker:east", "docker:west") == list(DESKTOPS.values()))
    eventually(lambda: sum(node["Alive"] for node in ray.nodes()) == 1 + len(DESKTOPS))
    return cluster_nodes


class Nodes:
    def __init__(self, cluster):
        self.cluster = cluster
        self.by_name = {}

    def add(self, name, units):
        resources = {f"docker:{name}": units}
        self.by_name[name] = in_a_few_attempts(lambda: self.cluster.add_node(num_cpus=0, resources=resources))

    def kill(self, name):
        """SIGKILL the node, and wait for its workers: they live on for a moment, long enough to end an episode."""
        workers = self.processes(name)
        self.cluster.remove_node(self.by_name.pop(name), allow_graceful=False)
        _, alive = psutil.wait_procs(workers, timeout=PATIENCE_S)
        assert not alive

    def processes(self, name):
        """All that run below the node's raylet: its workers, and their desktops."""
        (raylet,) = self.by_name[name].all_processes["raylet"]
        return psutil.Process(raylet.process.pid).children(recursive=True)

    def runs(self, name, program):
        """Whether one of them is `program`; others may be ending just now."""
        for process in self.processes(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == program:
                    return True
        return False


def environment(**options):
    return {"provider": "fake", "host_resource": "docker:", "retry_backoff_s": 0.5, "max_attempts": 5, **options}


def free_units(*names):
    free = ray.available_resources()
    return [free.get(name, 0) for name in names]


async def hold_all(pool, number):
    """On which hosts `number` desktops are that are held together."""
    together = asyncio.Barrier(number)

    async def hold():
        async with pool.lease("t") as desktop:
            await together.wait()
            return desktop.host

    return Counter(await asyncio.wait_for(asyncio.gather(*(hold() for _ in range(number))), PATIENCE_S))


@pytest.mark.release
def test_desktops_are_spread_over_the_nodes_that_offer_them_in_proportion(nodes):
    pool = DesktopPool.connect(EnvironmentConfig(num_desktops=3, **environment()), name=uuid.uuid4().hex)
    assert asyncio.run(hold_all(pool, 3)) == {"docker:east": 2, "docker:west": 1}
    assert pool.status()["nodes"] == 2
    eventually(lambda: free_units("docker:east", "docker:west") == [2, 1])  # one a desktop; nodes report now and then
    pool.close()


@pytest.mark.release
def test_a_pool_larger_than_the_cluster_is_refused_and_does_not_hang(nodes):
    pool = DesktopPool.connect(EnvironmentConfig(num_desktops=7, **environment()), name=uuid.uuid4().hex)
    with pytest.raises(ConfigError, match="needs 7 units .* offers 6 .docker:east: 4, docker:west: 2; 1 nodes offer"):
        asyncio.run(hold_all(pool, 1))
    pool.close()


@pytest.mark.release
def test_episodes_of_a_node_that_dies_are_played_elsewhere_and_a_node_that_joins_is_used(
    nodes, policy, tokenizer, tmp_path
):
    options = environment(num_desktops=6, desktops_per_worker=2)
    config = OmegaConf.merge(recipe({"trajectory_dir": str(tmp_path)}), {"environment": options})
    pool = connect_pool(config)
    eventually(lambda: pool.status()["desktops_idle"] == 6)
    in_the_middle = asyncio.Barrier(7)

    class Pausing(ScriptedEngine):
        """Clicks twice and is done, in each attempt; waits before its second reply until the node is dead."""

        async def generate(self, *args, image_data, **kwargs):
            if len(self.calls) == 1:
                await in_the_middle.wait()
                await in_the_middle.wait()
            self.replies = [[HIT, HIT, DONE][len(image_data) - 1]]
            return await super().generate(*args, image_data=image_data, **kwargs)

    async def session(number):
        loop = make_loop(policy, Pausing(tokenizer, []), None, config)
        return await loop.run({}, **{**ROW, "session_id": number})

    async def run():
        sessions = [asyncio.create_task(session(number)) for number in range(6)]
        await asyncio.wait_for(in_the_middle.wait(), PATIENCE_S)
        await asyncio.to_thread(nodes.kill, "west")
        await in_the_middle.wait()
        return await asyncio.wait_for(asyncio.gather(*sessions), PATIENCE_S)

    outputs = asyncio.run(run())
    assert [output.reward_score for output in outputs] == [1.0] * 6
    episodes = [json.loads(path.read_text()) for path in tmp_path.glob("*/*/episode.json")]
    assert len(episodes) == 6
    assert all(episode["desktop"].endswith("on docker:east") for episode in episodes), "no score from the dead node"
    eventually(lambda: pool.status()["desktops_busy"] == 0)  # a lease's end is not waited for
    eventually(lambda: pool.status()["nodes"] == 1)  # Ray tells each process of a death by itself
    metrics = pool.metrics()
    assert metrics["environment/faults/host"] == 2
    assert metrics["environment/nodes"] == 1
    eventually(lambda: (pool.status()["desktops_unplaced"], pool.status()["desktops_idle"]) == (2, 4))
    nodes.add("north", 2)
    eventually(lambda: pool.status()["desktops_idle"] == 6)
    assert asyncio.run(hold_all(pool, 6)) == {"docker:east": 4, "docker:north": 2}
    pool.close()


@pytest.mark.release
@pytest.mark.desktop
def test_real_desktops_of_a_node_that_dies_end_with_it_and_others_go_on(nodes):
    options = {**environment(), "provider": "embedded", "desktops_per_worker": 2}
    pool = DesktopPool.connect(EnvironmentConfig(num_desktops=3, **options), name=uuid.uuid4().hex)
    eventually(lambda: pool.status()["desktops_idle"] == 3)
    (task,) = [task for task in load_tasks("embedded") if task.task_id == "dialog-confirm-yes"]
    held, dead = asyncio.Barrier(4), asyncio.Event()

    async def episode():
        async with pool.lease(task.task_id) as desktop:
            await desktop.reset(task)
            await held.wait()
            await dead.wait()
            return await finish(desktop, task)

    async def run():
        playing = [asyncio.create_task(episode()) for _ in range(3)]
        await asyncio.wait_for(held.wait(), PATIENCE_S)
        assert nodes.runs("west", "bwrap")
        await asyncio.to_thread(nodes.kill, "west")
        dead.set()
        outcomes = await asyncio.wait_for(asyncio.gather(*playing, return_exceptions=True), PATIENCE_S)
        return outcomes

    outcomes = asyncio.run(run())
    assert sum(isinstance(outcome, HostLostError) for outcome in outcomes) == 1
    assert outcomes.count(1.0) == 2, "an evaluator's verdict on each desktop that lived"
    eventually(lambda: pool.status()["desktops_busy"] == 0)
    assert pool.metrics()["environment/faults/host"] == 1
    pool.close()


async def finish(desktop, task: Task):
    for reply in expert_replies(task.task_id):
        for action in reply.actions:
            await desktop.step(action)
    return (await desktop.evaluate()).score


@contextlib.contextmanager
def another_node(nodes, resource, before=(), **variables):
    """A node with a CPU that `ray start` starts, behind `before` and with these variables; found by its resource."""
    ray_command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={nodes.cluster.address}"]
    options = ["--num-cpus=1", "--block", "--disable-usage-stats", f'--resources={{"{resource}": 1}}']
    environment = {**os.environ, **PATIENCE, **variables}

    def start():
        node = subprocess.Popen(
            [*before, *ray_command, *options], stdout=subprocess.DEVNULL, start_new_session=True, env=environment
        )
        eventually(lambda: node.poll() is not None or has_joined())
        assert node.poll() is None, "Ray did not start within the time that it gives itself"
        return node

    def has_joined():
        return any(resource in node["Resources"] for node in ray.nodes() if node["Alive"])

    started = in_a_few_attempts(start)
    try:
        yield
    finally:
        os.killpg(started.pid, signal.SIGTERM)
        started.wait()


@pytest.mark.release
def test_a_checkpoints_folder_that_a_node_does_not_see_is_refused_and_the_node_named(nodes, tmp_path, monkeypatch):
    """The node's own disk: another mount over the folder, in a mount namespace of its own."""
    require_shared(tmp_path / "shared", "trainer.default_local_dir")
    mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$1" && shift && exec "$@"', "sh", str(tmp_path)]
    if subprocess.run([*mount, "true"], capture_output=True).returncode != 0:
        pytest.skip("a mount namespace of one's own needs root")
    with another_node(nodes, "blind", mount):
        listed = ray.nodes()
        for order in (listed, listed[::-1]):  # all of them are called as this host is
            monkeypatch.setattr(ray, "nodes", lambda order=order: order)
            with pytest.raises(ConfigError, match="default_local_dir must be a folder that all nodes share, got"):
                require_shared(tmp_path / "shared", "trainer.default_local_dir", patience_s=0.0)
    assert not any((tmp_path / "shared").iterdir())


@pytest.mark.release
def test_a_node_with_other_packages_is_refused_with_what_to_install(nodes, tmp_path):
    """The node finds another transformers."""
    require_same_packages()
    other = tmp_path / "transformers-5.8.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 5.8.0\n")
    with another_node(nodes, "other", PYTHONPATH=str(tmp_path)):
        with pytest.raises(ConfigError, match="all nodes must have the packages of the trainer's node") as refusal:
            require_same_packages()
    here = metadata.version("transformers")
    assert f"has transformers 5.8.0, not {here}: pip install transformers=={here}" in str(refusal.value)
    assert " has torch " not in str(refusal.value)
