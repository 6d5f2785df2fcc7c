"""The job's pool and the agent loop's retries as they are, over workers that are played: hours pass in moments.

Real are the pool's actor with all its parts, the pool's handle and `GuiAgentLoop.run`; played are Ray, whose calls
become tasks of one event loop, the workers, and what an episode does on its desktop. The event loop's clock goes from
timer to timer without waiting.
"""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import ray

pytest.importorskip("verl")  # a test module that imports this one is skipped

from virtual_clock import Handle, VirtualLoop, virtual_ray  # noqa: E402

from arpo_verl import errors  # noqa: E402
from arpo_verl.agent.rollout.config import GuiAgentConfig  # noqa: E402
from arpo_verl.desktops.config import EnvironmentConfig  # noqa: E402
from arpo_verl.desktops.pool.desktop_pool import DesktopPool  # noqa: E402
from arpo_verl.desktops.pool.pool_actor import PoolActor  # noqa: E402
from arpo_verl.plugin import agent_loop  # noqa: E402
from arpo_verl.types import Finish  # noqa: E402


@dataclass
class Host:
    """How a node's desktops behave: `faults` maps a call to the error's name, or to a function of the task; `seconds`
    has what a call that fails takes."""

    name: str
    units: int
    seconds: dict = field(default_factory=dict)
    faults: dict = field(default_factory=dict)
    calls: list = field(default_factory=list)

    @property
    def node(self):
        resources = {f"docker:{self.name}": self.units}
        return {"NodeID": self.name, "Alive": True, "Resources": resources, "NodeManagerAddress": self.name}


SECONDS = {"prepare": 5.0, "reset": 10.0, "step": 30.0, "evaluate": 2.0}


class PlayedDesktop:
    """A desktop's calls: each yields the seconds that it takes, then returns or raises its host's fault."""

    def __init__(self, host, name):
        self.host, self.task_id = host, ""

    def is_ready(self):
        yield 0.0
        return self._fault("step") is None

    def prepare(self):
        return self._call("prepare")

    def reset(self, task):
        self.task_id = task.task_id
        return self._call("reset")

    def step(self, action):
        return self._call("step")

    def evaluate(self):
        return self._call("evaluate")

    def _fault(self, call):
        fault = self.host.faults.get(call)
        return fault(self.task_id) if callable(fault) else fault

    def _call(self, call):
        self.host.calls.append((call, asyncio.get_running_loop().time()))
        fault = self._fault(call)
        yield self.host.seconds.get(call, 0.1) if fault else SECONDS[call]
        fault = fault or self._fault(call)
        if fault:
            raise getattr(errors, fault)(f"{call} on {self.host.name}")


class Simulation:
    """A pool over `hosts`; `run` plays sessions on it.

    Attributes:
        outcomes: what each session's `GuiAgentLoop.run` came to, once it has: `"scored"` or the error.
    """

    def __init__(self, monkeypatch, hosts, **options):
        self.hosts = {host.name: host for host in hosts}
        self.loop = VirtualLoop(now=1000.0)
        self.outcomes = []
        self.start_s = options.pop("start_s", 30.0)
        num_desktops = options.pop("num_desktops", sum(host.units for host in hosts))
        options = {"host_resource": "docker:", "provider": "fake", **options}
        self.config = EnvironmentConfig(num_desktops=num_desktops, **options)
        self.nodes = lambda: [host.node for host in hosts]

        async def play(task, desktop, *_):
            await desktop.reset(task)
            await desktop.step(Finish())
            await desktop.evaluate()
            return SimpleNamespace(rows=())

        async def score(*_):
            return "score"

        monkeypatch.setattr(ray, "available_resources", dict)
        monkeypatch.setattr(agent_loop, "play_episode", play)
        monkeypatch.setattr(agent_loop, "score_episode", score)

    @property
    def now(self):
        return self.loop.time()

    def run(self, task_ids, beside=None):
        """Play a session for each of `task_ids`, all at once, once the desktops have had time to boot."""

        async def script():
            self.actor = PoolActor(self.config)
            self.actor._hosts._clock = self.loop.time
            self.pool = DesktopPool(self.config, Handle(self.actor))
            await asyncio.sleep(self.start_s)
            if beside is not None:
                others = asyncio.ensure_future(beside(self))
            self.outcomes = await asyncio.gather(*map(self.session, task_ids))
            if beside is not None:
                await others
            self.metrics = await self.actor.metrics()
            await self.actor.close()

        units = {name: host.units for name, host in self.hosts.items()}
        try:
            with virtual_ray(self.loop, self.hosts, units, PlayedDesktop), patch.object(ray, "nodes", self.nodes):
                self.loop.run_until_complete(script())
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0.01))
            self.loop.close()
        return self.outcomes

    async def session(self, task_id):
        """One session through the agent loop's own `run`."""
        loop = object.__new__(agent_loop.GuiAgentLoop)
        loop._settings = SimpleNamespace(environment=self.config, agent=GuiAgentConfig(), reward_function=None)
        loop._pool, loop._limits = self.pool, None
        loop._chat = SimpleNamespace(text=lambda ids: "")
        loop._recorder = SimpleNamespace(episode=lambda row, task: _NoRecord())
        loop._output = lambda *_: "scored"
        loop.rollout_config = {"full_determinism": False}
        extra_info = {"index": 0, "task_id": task_id, "instruction": "do it", "spec": {"id": task_id}}
        try:
            return await loop.run({}, extra_info=extra_info)
        except Exception as error:
            return error

    @property
    def lost(self):
        return [outcome for outcome in self.outcomes if outcome != "scored"]


class _NoRecord:
    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    def begin(self, desktop):
        pass

    async def finish(self, episode, score):
        pass
