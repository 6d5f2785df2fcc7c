"""A clock that passes only when nothing is left to do, and Ray's calls as tasks of one event loop: hours in moments.

What runs under it is the pool's actor with all its parts, its handle and the agent loop, as they are. Threads
that the loop runs, as for decoding, take no time. The machine's load changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import ray
from rollout_desktop import Host, SimulatedCalls

from arpo_verl.desktops.pool import workers
from arpo_verl.desktops.pool.worker import CallResult, DesktopWorker
from arpo_verl.errors import ConfigError, DesktopError


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time goes from timer to timer, as soon as no thread of it works. It begins at `now`, in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        super().__init__()
        self._now, self._threads = now, 0
        select = self._selector.select  # type: ignore[attr-defined]

        def skip(timeout: float | None = None) -> Any:
            events = select(None if self._threads and timeout != 0 else 0)
            if not events and timeout is None:
                raise RuntimeError("everything waits for something that will never come")
            if not events and timeout:
                self._now += timeout
            return events

        self._selector.select = skip  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> Any:
        self._threads += 1
        future = super().run_in_executor(executor, function, *args)
        future.add_done_callback(self._thread_is_done)
        return future

    def _thread_is_done(self, _: Any) -> None:
        self._threads -= 1


class Handle:
    """An actor's handle: calls of its methods are tasks."""

    def __init__(self, actor: Any):
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._actor, name)
        # As with Ray, whoever gives up waiting does not end the call.
        return SimpleNamespace(remote=lambda *args: asyncio.shield(asyncio.ensure_future(method(*args))))


class VirtualWorker(DesktopWorker):
    """The pool's worker, whose desktops' calls are awaited in its event loop instead of made in threads."""

    def __init__(self, node_id: str, make: Callable[[str], SimulatedCalls], generations: dict[int, int]):
        self._node_id, self._new, self._generations = node_id, make, dict(generations)
        self._desktops: dict[int, SimulatedCalls] = {}

    async def where(self) -> tuple[str, str]:
        return self._node_id, self._node_id

    async def ping(self) -> dict[int, float]:
        return dict.fromkeys(self._generations, 0.0)

    async def renew(self, index: int) -> int:
        self._desktops.pop(index, None)
        self._generations[index] += 1
        return self._generations[index]

    async def close(self) -> None:
        self._desktops.clear()

    async def _call(self, index: int, generation: int, function: Callable[[Any], Any]) -> CallResult:
        if index not in self._desktops:
            self._desktops[index] = self._new(f"desktop-{index}.{generation}")
        began = asyncio.get_running_loop().time()
        call = function(self._desktops[index])
        try:
            while True:
                await asyncio.sleep(next(call))
        except StopIteration as over:
            return CallResult(value=over.value, seconds=asyncio.get_running_loop().time() - began)
        except (ConfigError, DesktopError) as error:
            return CallResult(error=error)
        finally:
            call.close()


@contextmanager
def virtual_ray(
    loop: VirtualLoop, hosts: dict[str, Host], units: dict[str, int], make: Callable[..., Any]
) -> Iterator[None]:
    """Nodes of `units` desktops each, whose workers make desktops by `make(host, name)`; all clocks are the loop's."""
    nodes = [
        {"NodeID": name, "Alive": True, "Resources": {f"docker:{name}": units[name]}, "NodeManagerAddress": name}
        for name in hosts
    ]

    def worker_class(config: Any, placement: Any) -> Any:
        name = placement.offer.node_id

        def start(_: Any, generations: dict[int, int]) -> Handle:
            return Handle(VirtualWorker(name, lambda desktop: make(hosts[name], desktop), generations))

        return SimpleNamespace(remote=start)

    async def inline(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    with ExitStack() as patches:
        for target, name, value in (
            (asyncio, "to_thread", inline),
            (time, "monotonic", loop.time),
            (workers, "_worker_class", worker_class),
            (ray, "nodes", lambda: nodes),
            (ray, "kill", lambda actor: None),
        ):
            patches.enter_context(patch.object(target, name, value))
        yield
