"""How near rollouts come to what their desktops allow, and how far behind them a step in lockstep lies.

    .venv/bin/python benchmarks/rollout_schedule.py [--smoke] [--desktops N] [--tails KIND] [--json PATH]

A training step is 16 tasks of 8 rollouts with 15 replies each, on desktops of which 32 share a host. The agent loop,
the pool's handle, actor, leases, boots and retries are the package's own; the desktops and the policy take the
seconds that `rollout_draws.py` draws, by a clock that passes when nothing is left to do (`virtual_clock.py`), so that
the figures are the schedule's alone and hold on a busy machine: what Ray, decoding and the queue cost is not in them.

Each setting is compared on the same draws with

    lockstep   as in the reference: set up together, then all reply and all act, until the slowest has, and so on
    bound      the larger of the longest session and the desktops' work shared evenly: no schedule does better

of `--steps` steps behind the first, whose desktops booted beforehand. Between them the trainer takes `TRAIN_S`. In
`sync` a step waits for its last verdict; in `stream`, as in the asynchronous modes, the next batch of prompts is there
before. There four times as many steps are measured, behind three: all sessions begin together, and it takes some
steps until they are spread. Keys:

    speedup_vs_lockstep      lockstep / ours, at 128 desktops, sync
    fraction_of_bound        bound / ours, the same; `fraction_of_bound_with_faults` with 10% of attempts broken
    fraction_of_bound_async  bound / ours, at 128 desktops, stream
    environment_utilisation  share of the desktops' time, while `stream` generates, in which they are in an episode or
                             boot for one; `in_episode` of it in an episode

A host bears `--bears` boots at full speed and shares itself among more; this number is assumed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from figures import Arguments, machine, show, write
from omegaconf import DictConfig, OmegaConf
from policies.architecture import PolicySize
from policies.build import build_policy
from rollout_desktop import Host, SimulatedCalls, SimulatedPolicy
from rollout_draws import HANG_S, SLOW_FACTOR, TAILS, Session, World, least_s, lockstep_s
from trainer_run import ROOT
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from virtual_clock import Handle, VirtualLoop, virtual_ray

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.desktop_pool import DesktopPool
from arpo_verl.desktops.pool.pool_actor import PoolActor
from arpo_verl.errors import DesktopError
from arpo_verl.plugin.agent_loop import GuiAgentLoop

DESKTOPS_PER_HOST = 32
TRAIN_S, STREAM_TRAIN_S = 120.0, 60.0
STREAM_STEPS = 4
MAX_ATTEMPTS = EnvironmentConfig.max_attempts
FAULTS = (0.0, 0.02, 0.1)
COUNTS = (8, 32, 512)
"""Desktops, besides 128; a step has at least as many sessions."""
BOOT_POLL_S = 1.0


@dataclass(frozen=True)
class Setting:
    """One run of training steps."""

    desktops: int = 128
    tasks: int = 16
    rollouts: int = 8
    steps: int = 4
    """Those that are measured, behind others; `STREAM_STEPS` times as many of a stream, in which they overlap."""
    mode: str = "sync"
    world: World = World()
    bears: int = 16
    boots: int | None = None
    """`environment.max_boots_per_host`."""

    @property
    def hosts(self) -> list[int]:
        """Desktops of each host."""
        full, rest = divmod(self.desktops, DESKTOPS_PER_HOST)
        return [DESKTOPS_PER_HOST] * full + [rest] * bool(rest)

    def sessions(self, step: int) -> list[Session]:
        return [(step, task, rollout) for task in range(self.tasks) for rollout in range(self.rollouts)]

    @property
    def measured(self) -> range:
        if self.mode == "sync":
            return range(2, 2 + self.steps)
        return range(4, 4 + STREAM_STEPS * self.steps)  # its first sessions all begin, and so end, at once


class Stage:
    """What all settings share: a small policy's tokenizer and processor, and the recipe."""

    def __init__(self, folder: Path):
        from verl.utils import hf_processor, hf_tokenizer

        self.folder = folder
        self.path = str(build_policy(folder / "policy", size=PolicySize(num_layers=1, vision_depth=1)))
        self.tokenizer, self.processor = hf_tokenizer(self.path), hf_processor(self.path)

    @cached_property
    def _recipe(self) -> DictConfig:
        from hydra import compose, initialize_config_dir

        fixed = ["hydra.searchpath=[pkg://verl.trainer.config]", f"actor_rollout_ref.model.path={self.path}"]
        fixed += [f"run_dir={self.folder}", "++gui_agent.trajectory_dir=null", "trainer.logger=[console]"]
        fixed += ["data.max_response_length=4096", "actor_rollout_ref.rollout.full_determinism=true"]
        with initialize_config_dir(str(ROOT / "recipes"), version_base=None):
            return compose("embedded", overrides=fixed)

    def config(self, setting: Setting, environment: dict[str, Any]) -> DictConfig:
        config = self._recipe.copy()
        OmegaConf.set_struct(config, False)
        config.gui_agent.max_steps = setting.world.turns
        config.actor_rollout_ref.rollout.n = setting.rollouts
        config.environment = {"num_desktops": setting.desktops, "screen_size": [200, 150], **environment}
        OmegaConf.resolve(config)
        return config


class VirtualRun:
    """A setting by the virtual clock."""

    def __init__(self, stage: Stage, setting: Setting):
        self.stage, self.setting = stage, setting
        patience = dict.fromkeys(("reset_timeout_s", "step_timeout_s", "evaluate_timeout_s"), HANG_S)
        environment = {"provider": "rollout_desktop:SimulatedCalls", "host_resource": "docker:", **patience}
        environment["max_boots_per_host"] = setting.boots
        self.config = stage.config(setting, environment)
        self.environment = EnvironmentConfig(**OmegaConf.to_container(self.config.environment))
        self.policy = SimulatedPolicy(setting.world, stage.tokenizer)
        self.lost = 0

    def play(self) -> dict[str, Any]:
        """Play all steps; the figures of those that are measured."""
        loop, setting = VirtualLoop(), self.setting
        slow = setting.world.tails == "slow_host"
        units = {f"h{number}": size for number, size in enumerate(setting.hosts)}
        self.hosts = hosts = {
            name: Host(setting.bears, SLOW_FACTOR if slow and name == "h0" else 1.0) for name in units
        }
        attempts: Counter[Session] = Counter()

        def make(host: Host, name: str) -> SimulatedCalls:
            return SimulatedCalls(setting.world, host, name, attempts, self.environment.screen_size)

        with virtual_ray(loop, hosts, units, make):
            try:
                return loop.run_until_complete(self._play(loop))
            finally:
                for task in asyncio.all_tasks(loop):
                    task.cancel()
                loop.run_until_complete(asyncio.sleep(0.01))
                loop.close()

    async def _play(self, loop: VirtualLoop) -> dict[str, Any]:
        actor = PoolActor(self.environment)
        actor._hosts._clock = actor._metrics._clock = loop.time
        actor._metrics._clear()
        self.pool = DesktopPool(self.environment, Handle(actor))  # type: ignore[arg-type]
        while (await self.pool._actor.status.remote())["desktops_idle"] < self.setting.desktops:
            await asyncio.sleep(BOOT_POLL_S)
        try:
            return await (self._sync(loop) if self.setting.mode == "sync" else self._stream(loop))
        finally:
            await actor.close()

    async def _sync(self, loop: VirtualLoop) -> dict[str, Any]:
        spent, shares = [], []
        for step in range(1, self.setting.measured.stop):
            await self.pool._actor.metrics.remote()
            began = loop.time()
            await asyncio.gather(*map(self.session, self.setting.sessions(step)))
            spent.append(loop.time() - began)
            shares.append((await self.pool._actor.metrics.remote())["environment/busy_share"])
            await asyncio.sleep(TRAIN_S)
        before = len(spent) - self.setting.steps
        return {"step_s": spent[before:], "in_episode": mean(shares[before:]), "lost": self.lost}

    async def _stream(self, loop: VirtualLoop) -> dict[str, Any]:
        """Two batches of prompts in flight; a batch of groups that are done is trained on while the others go on."""
        setting, done = self.setting, asyncio.Semaphore(0)
        running: list[asyncio.Future[None]] = []

        async def group(sessions: Sequence[Session]) -> None:
            await asyncio.gather(*map(self.session, sessions))
            done.release()

        def add(step: int) -> None:
            sessions = setting.sessions(step)
            for first in range(0, len(sessions), setting.rollouts):
                running.append(asyncio.ensure_future(group(sessions[first : first + setting.rollouts])))

        add(1)
        before, ends, busy_s, booted_s = setting.measured.start - 1, [], 0.0, 0.0
        for step in range(2, setting.measured.stop + 1):
            add(step)
            for _ in range(setting.tasks):
                await done.acquire()
            ends.append(loop.time())
            busy = (await self.pool._actor.metrics.remote())["environment/busy_share"]
            if len(ends) == before:
                booted_s = self._booted_s
            elif len(ends) > before:
                busy_s += busy * (ends[-1] - ends[-2])
            if step < setting.measured.stop:
                await asyncio.sleep(STREAM_TRAIN_S)
        booted_s = (self._booted_s - booted_s) / setting.desktops
        await asyncio.gather(*running)
        ends = ends[before - 1 :]
        window_s = ends[-1] - ends[0]
        return {
            "step_s": [end - begin for begin, end in itertools.pairwise(ends)],
            "in_episode": busy_s / window_s,
            "environment_utilisation": (busy_s + booted_s) / window_s,
            "lost": self.lost,
        }

    @property
    def _booted_s(self) -> float:
        return sum(host.boot_s for host in self.hosts.values())

    async def session(self, session: Session) -> None:
        """One session through the agent loop's own `run`, as veRL's worker makes and runs it."""
        stage = self.stage
        loop = GuiAgentLoop(
            trainer_config=DictConfigWrap(self.config),
            server_manager=self.policy,
            tokenizer=stage.tokenizer,
            processor=stage.processor,
            hf_model_type=stage.processor.config.model_type,
            dataset_cls=None,
            data_config=DictConfigWrap(self.config.data),
            tools=None,
            pool=self.pool,
        )
        try:
            await loop.run({"temperature": 1.0, "logprobs": True}, **row(session))
        except DesktopError:
            self.lost += 1


def row(session: Session) -> dict[str, Any]:
    """The dataset row of a session, with what veRL adds."""
    step, task, rollout = session
    extra_info = {
        "index": task,
        "task_id": f"task-{task}",
        "instruction": "Click.",
        "spec": {"id": f"task-{task}", "session": list(session)},
    }
    return {
        **{"uid": f"{step}-{task}", "session_id": rollout, "global_steps": step, "data_source": "schedule"},
        **{"raw_prompt": [], "reward_model": {"ground_truth": ""}, "extra_info": extra_info},
    }


def compare(setting: Setting, played: dict[str, Any]) -> dict[str, Any]:
    """A setting's figures beside lockstep and bound."""
    world, hosts = setting.world, setting.hosts
    lockstep = [lockstep_s(world, setting.sessions(step), hosts, setting.bears) for step in setting.measured]
    stream = setting.mode == "stream"
    least = [least_s(world, setting.sessions(step), hosts, MAX_ATTEMPTS, stream) for step in setting.measured]
    ours = sum(played["step_s"])
    return {
        "desktops": setting.desktops,
        "sessions": len(setting.sessions(0)),
        "mode": setting.mode,
        "tails": world.tails,
        "varied": world.varied,
        "faults": world.fault_rate,
        "boots_at_once": setting.boots or "default",
        "step_s": round(mean(played["step_s"]), 1),
        "lockstep_s": round(mean(each["total"] for each in lockstep), 1),
        "bound_s": round(mean(least), 1),
        "speedup_vs_lockstep": round(sum(each["total"] for each in lockstep) / ours, 3),
        "fraction_of_bound": round(sum(least) / ours, 3),
        **{name: round(played[name], 3) for name in ("environment_utilisation", "in_episode") if name in played},
        "lost_sessions": played["lost"],
    }


def settings(args: Any) -> list[Setting]:
    """What the command line asks for; without a choice, the whole table."""
    base = Setting(args.desktops or 128, args.tasks, args.rollouts, args.steps, bears=args.bears)
    base = replace(
        base, world=World(args.seed, args.tails or "lognormal", args.faults or 0.0, args.replies, args.varied)
    )
    both = [base, replace(base, mode="stream")]
    if args.smoke or any(value is not None for value in (args.desktops, args.tails, args.faults)):
        return both
    chosen = [*both, replace(base, boots=8), replace(base, boots=8, mode="stream")]
    world = base.world
    faulty = replace(world, fault_rate=FAULTS[-1])
    chosen += [replace(base, world=replace(world, fault_rate=rate)) for rate in FAULTS[1:]]
    for each in [faulty, *(replace(world, tails=tails) for tails in TAILS[1:]), replace(world, varied=True)]:
        chosen += [replace(base, world=each, mode=mode) for mode in ("sync", "stream")][each is faulty :]
    chosen += [replace(base, world=replace(faulty, tails=tails)) for tails in TAILS[1:3]]
    for count in COUNTS:
        tasks = max(base.tasks, count // base.rollouts)
        chosen += [replace(base, desktops=count, tasks=tasks, mode=mode) for mode in ("sync", "stream")]
    return chosen


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The keys that the goals are told by: of the first two settings, and of the same with faults."""
    sync, stream = rows[:2]
    keys = {name: sync[name] for name in ("speedup_vs_lockstep", "fraction_of_bound")}
    keys["fraction_of_bound_async"] = stream["fraction_of_bound"]
    keys["environment_utilisation"] = stream["environment_utilisation"]
    same = {name: sync[name] for name in ("desktops", "mode", "tails", "varied")}
    for each in rows:
        if each["faults"] == FAULTS[-1] and same.items() <= each.items():
            keys["fraction_of_bound_with_faults"] = each["fraction_of_bound"]
    return keys


def main() -> None:
    parser = Arguments(__doc__, "two steps of four tasks of two rollouts on eight desktops")
    parser.add_size("--tasks", 16, 4, "in a step")
    parser.add_size("--rollouts", 8, 2, "of each")
    parser.add_size("--replies", 15, 5, "of an episode")
    parser.add_size("--steps", 2, 2, "measured")
    parser.add_argument("--desktops", type=int, metavar="N", help="one number alone, instead of the table")
    parser.add_argument("--tails", choices=TAILS, help="one kind alone")
    parser.add_argument("--faults", type=float, metavar="SHARE", help="one share of attempts alone")
    parser.add_argument(
        "--varied", action="store_true", help="episodes end before the last reply, each task's at its own"
    )
    parser.add_argument("--bears", type=int, default=16, metavar="N", help="boots at once that a host bears")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse()
    if args.smoke and args.desktops is None:
        args.desktops = 8
    logging.disable(logging.WARNING)
    chosen = settings(args)
    figures: dict[str, Any] = machine()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="arpo_verl-schedule-") as scratch:
        stage = Stage(Path(scratch))
        for setting in chosen:
            rows.append(compare(setting, VirtualRun(stage, setting).play()))
            print(rows[-1], flush=True)
            if len(rows) >= 2:
                write(figures | headline(rows) | {"settings": rows}, args.json)
    show(headline(rows))


if __name__ == "__main__":
    main()
