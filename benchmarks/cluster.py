"""A Ray node killed in the middle of a training step, and what desktops cost in memory.

    python benchmarks/cluster.py [--smoke] [--json PATH] [--policy FOLDER]

Three Ray nodes run on this machine, each offering desktops, and the stock trainer process trains on them with the
recipe `embedded`. In a step of its own, once the first episode of it is over, one node is killed with SIGKILL. Then
every recorded verdict of that step is judged anew: its actions are done again on a fresh desktop.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from figures import Arguments, machine, report
from ray.cluster_utils import Cluster
from trainer_run import TrainerRun, make_policy

from arpo_verl import types
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.errors import DesktopError
from arpo_verl.pool.desktop_pool import DesktopPool
from arpo_verl.records.metrics import read_metrics
from arpo_verl.tasks.loader import load_tasks
from arpo_verl.types import Action, Point, Task

TRAINER_TIMEOUT_S = 1500.0
BOOT_TIMEOUT_S = 300.0
START_ATTEMPTS = 4
# A verdict that was on its way when the node died is written a moment later.
WRITE_S = 10.0
# A busy machine may draw a window later than the policy once clicked it.
REPLAY_ATTEMPTS = 3


@dataclass(frozen=True)
class Plan:
    """How large it all is."""

    desktops_per_node: int
    memory_counts: tuple[int, ...]
    steps: int
    group_size: int

    @property
    def num_desktops(self) -> int:
        return 3 * self.desktops_per_node


FULL = Plan(desktops_per_node=8, memory_counts=(1, 8, 24), steps=3, group_size=4)
SMOKE = Plan(desktops_per_node=2, memory_counts=(1, 6), steps=2, group_size=2)


class Nodes:
    """A Ray cluster: the head, which also trains, and two nodes that only host desktops."""

    def __init__(self, plan: Plan):
        self.cluster = Cluster()
        # veRL asks for a logical GPU and for more logical cores than there are; see recipes/embedded.yaml.
        self._start(0, plan, num_cpus=16, num_gpus=1, include_dashboard=False, object_store_memory=512 * 1024**2)
        self.workers = [self._start(number, plan, num_cpus=0) for number in (1, 2)]

    def _start(self, number: int, plan: Plan, **options: Any) -> Any:
        options["resources"] = {f"desktop:node-{number}": plan.desktops_per_node}
        for _ in range(START_ATTEMPTS - 1):
            try:
                return self.cluster.add_node(**options)
            except Exception as error:  # Ray's own has no name: it gives a start 30 s, which a busy machine may exceed
                print(f"starting node {number} again: {error}")
        return self.cluster.add_node(**options)

    def kill_last(self) -> str:
        """SIGKILL to all of the last node; returns its name."""
        self.cluster.remove_node(self.workers.pop(), allow_graceful=False)
        return "desktop:node-2"


@contextmanager
def three_nodes(plan: Plan) -> Iterator[Nodes]:
    """The cluster, for the length of a block."""
    nodes = Nodes(plan)
    try:
        yield nodes
    finally:
        nodes.cluster.shutdown()


# --- Memory ------------------------------------------------------------------------------------------------------


def measure_memory(nodes: Nodes, counts: tuple[int, ...]) -> dict[str, Any]:
    """Proportional memory of desktops that have a task set up, and of the processes that serve them."""
    ray.init(address=nodes.cluster.address, log_to_driver=False)
    try:
        rows = [measure_pool(count) for count in counts]
    finally:
        ray.shutdown()
    figures: dict[str, Any] = {"memory_by_number_of_desktops": rows}
    return {**figures, **{name: rows[-1][name] for name in ("memory_per_desktop_bytes", "memory_per_worker_bytes")}}


def measure_pool(count: int) -> dict[str, float]:
    """A pool of `count` desktops, all in use."""
    config = EnvironmentConfig(num_desktops=count, desktops_per_worker=8, host_resource="desktop:")
    pool = DesktopPool.connect(config, name=f"memory-{count}")
    (task, *_) = load_tasks("embedded")
    try:
        return asyncio.run(hold_all(pool, task, count))
    finally:
        pool.close()


async def hold_all(pool: DesktopPool, task: Task, count: int) -> dict[str, float]:
    """Measure while every desktop is held in the middle of an episode."""
    ready, measured = asyncio.Barrier(count + 1), asyncio.Event()

    async def hold() -> None:
        async with pool.lease(task.task_id) as desktop:
            await desktop.reset(task)
            await ready.wait()
            await measured.wait()

    holders = [asyncio.create_task(hold()) for _ in range(count)]
    await asyncio.wait_for(ready.wait(), BOOT_TIMEOUT_S)
    figures = memory_of(worker_processes(), count)
    measured.set()
    await asyncio.gather(*holders)
    return figures


def worker_processes() -> list[psutil.Process]:
    """The pool's worker processes, by the name that Ray gives them."""
    return [process for process in psutil.Process().children(recursive=True) if "DesktopWorker" in title(process)]


def title(process: psutil.Process) -> str:
    """What a process calls itself; empty for one that has just ended."""
    try:
        return " ".join(process.cmdline()[:1])
    except psutil.NoSuchProcess:
        return ""


def memory_of(workers: list[psutil.Process], num_desktops: int) -> dict[str, float]:
    """PSS: pages that processes share count once between them."""
    own = sum(pss(process) for process in workers)
    desktops = sum(pss(child) for process in workers for child in process.children(recursive=True))
    return {
        "desktops": num_desktops,
        "workers": len(workers),
        "memory_per_desktop_bytes": desktops / num_desktops,
        "memory_per_worker_bytes": own / len(workers),
    }


def pss(process: psutil.Process) -> int:
    """A process's proportional memory; 0 for one that has just ended."""
    try:
        return process.memory_full_info().pss
    except psutil.NoSuchProcess:
        return 0


# --- A node killed -------------------------------------------------------------------------------------------------


def train_and_kill(nodes: Nodes, plan: Plan, policy: Path, run_dir: Path) -> dict[str, Any]:
    """Train; kill a node in the last step but one, or in the last of two; say what became of it."""
    kill_step = max(2, plan.steps - 1)
    trainer = start_trainer(nodes, plan, policy, run_dir)
    try:
        trainer.wait_for(lambda: any(episode_files(run_dir, kill_step)), TRAINER_TIMEOUT_S)
        playing = len(list(episode_files(run_dir, kill_step)))
        killed_at, killed = time.time(), nodes.kill_last()
        trainer.wait(TRAINER_TIMEOUT_S)
    finally:
        trainer.stop()
    figures = {"kill_step": kill_step, "episodes_over_when_killed": playing, "killed_node": killed}
    return {**figures, **examine_run(run_dir, plan, kill_step, killed, killed_at)}


def start_trainer(nodes: Nodes, plan: Plan, policy: Path, run_dir: Path) -> TrainerRun:
    """The stock trainer process, on the cluster."""
    overrides = [
        f"actor_rollout_ref.model.path={policy}",
        f"data.train_batch_size={plan.num_desktops // plan.group_size}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={plan.num_desktops // plan.group_size}",
        f"actor_rollout_ref.rollout.n={plan.group_size}",
        f"++environment.num_desktops={plan.num_desktops}",
        "++environment.desktops_per_worker=8",
        "++environment.host_resource='desktop:'",
        f"trainer.total_training_steps={plan.steps}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        # The cluster's own, and Ray wants neither said again.
        "ray_kwargs.ray_init.num_cpus=null",
        "~ray_kwargs.ray_init.num_gpus",
        f"ray_kwargs.ray_init.address={nodes.cluster.address}",
    ]
    return TrainerRun(run_dir, *overrides, env={"RAY_ADDRESS": nodes.cluster.address})


def episode_files(run_dir: Path, step: int) -> Iterator[Path]:
    """The recorded episodes of a step."""
    return run_dir.glob(f"trajectories/step_{step:06d}/*/episode.json")


def examine_run(run_dir: Path, plan: Plan, kill_step: int, killed: str, killed_at: float) -> dict[str, Any]:
    """What the trainer's metrics and the recorded episodes say."""
    rows = {step: data for step, data in read_metrics(run_dir / "metrics.jsonl") if "rollout/reward_mean" in data}
    files = {step: list(episode_files(run_dir, step)) for step in rows}
    episodes = {step: [json.loads(path.read_text()) for path in paths] for step, paths in files.items()}
    late = [
        path
        for path, episode in zip(files[kill_step], episodes[kill_step], strict=True)
        if episode["desktop"].endswith(killed) and path.stat().st_mtime > killed_at + WRITE_S
    ]
    return {
        "steps_completed": len(rows),
        "episodes_recorded": sum(map(len, episodes.values())),
        "episodes_expected": plan.num_desktops * len(rows),
        "episodes_recorded_in_kill_step": len(episodes[kill_step]),
        "episodes_of_killed_node_in_kill_step": sum(e["desktop"].endswith(killed) for e in episodes[kill_step]),
        "episodes_of_killed_node_after_its_death": len(late),
        "sessions_dropped": total(rows, "environment/dropped_sessions"),
        "faults": {kind: total(rows, f"environment/faults/{kind}") for kind in ("host", "lost", "setup", "evaluator")},
        "nodes_by_step": [data["environment/nodes"] for data in rows.values()],
        "step_s_by_step": [data["timing_s/step"] for data in rows.values()],
        "reward_mean_largest_difference": max(
            abs(data["rollout/reward_mean"] - mean([e["reward"] for e in episodes[step]]))
            for step, data in rows.items()
        ),
        **judge_anew(episodes[kill_step]),
    }


def total(rows: dict[int, dict[str, float]], name: str) -> float:
    """A counter's sum over the steps."""
    return sum(data.get(name, 0.0) for data in rows.values())


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


# --- Verdicts, judged anew ---------------------------------------------------------------------------------------


def judge_anew(episodes: list[dict[str, Any]]) -> dict[str, int]:
    """Do each episode's actions again on a fresh desktop, and compare the verdicts."""
    from arpo_verl.environments.osworld.environment import OSWorldEnvironment

    tasks = {task.task_id: task for task in load_tasks("embedded")}
    desktop = OSWorldEnvironment(EnvironmentConfig(), "judge")
    try:
        same = sum(agrees(desktop, tasks[episode["task_id"]], episode) for episode in episodes)
    finally:
        desktop.close()
    return {"verdicts_judged_anew": len(episodes), "verdicts_that_differ": len(episodes) - same}


def agrees(desktop: Any, task: Task, episode: dict[str, Any]) -> bool:
    """Whether the desktop gives the recorded verdict again."""
    for _ in range(REPLAY_ATTEMPTS):
        try:
            desktop.reset(task)
            for turn in episode["turns"]:
                for action in turn["actions"]:
                    desktop.step(read_action(action))
            if desktop.evaluate().score == episode["success"]:
                return True
        except DesktopError as error:
            print(f"judging {task.task_id} again: {error}")
    return False


def read_action(record: dict[str, Any]) -> Action:
    """An action from its record."""
    values = {
        name: Point(*value) if name in ("point", "start", "end") and value is not None else value
        for name, value in record.items()
        if name != "action"
    }
    if "keys" in values:
        values["keys"] = tuple(values["keys"])
    return getattr(types, record["action"])(**values)


# -----------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = Arguments(__doc__, "six desktops and two steps")
    parser.add_argument("--policy", type=Path, help="made by `python -m arpo_verl.policy`; without it one is made")
    parser.add_argument("--memory-only", action="store_true", help="measure memory, without the training")
    arguments = parser.parse()
    plan = SMOKE if arguments.smoke else FULL
    os.environ["VERL_PLATFORM"] = "cpu"  # inherited by the nodes
    figures: dict[str, Any] = {**machine(), "desktops": plan.num_desktops}
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder, three_nodes(plan) as nodes:
        figures |= measure_memory(nodes, plan.memory_counts)
        if not arguments.memory_only:
            policy = arguments.policy or make_policy(Path(folder) / "policy", "--target-success", "0.2")
            figures |= train_and_kill(nodes, plan, policy.resolve(), Path(folder) / "run")
    report(figures, arguments.json)


if __name__ == "__main__":
    main()
