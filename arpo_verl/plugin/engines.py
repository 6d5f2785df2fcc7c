"""Call rollout engines that may fail: a failed call is made again on another engine, and lost engines are left out.

veRL's load balancer does not see how a call ended. An engine that fails at once has the fewest requests, so it gets the
next ones too. Here the client reports the end of each call to the router, which extends veRL's balancer.

The router uses veRL's plugin point `rollout.router_config_path` (veRL 0.9.1, `workers/rollout/router.py`): a file that
names a class. veRL looks for the file in the working folder and beside its own package, where an editable install is
not. So `arpo_verl.plugin` writes the file's whole path into the environment variable that the recipe reads. The client
has no plugin point: `GuiAgentLoopManager` puts ours in the place of veRL's.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import ray
from ray.actor import ActorHandle
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from arpo_verl.plugin.trainer_watch import EngineStatus, LostEngine, in_words, is_death

logger = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Failed calls in a row, answered by another engine, after which an engine counts as lost. One may be an accident."""


@dataclass(frozen=True)
class _OpenCall:
    server_id: str
    holder: str
    """Ray's name of the rollout worker that made the call."""


class EngineRouter(GlobalRequestLoadBalancer):
    """veRL's load balancer, which also learns how calls end and remembers lost engines.

    Args:
        servers: the engines' actors, by address.
        config: the content of `router.yaml`.
    """

    def __init__(self, servers: dict[str, Any], config: Mapping[str, Any] | None = None) -> None:
        super().__init__(servers)
        self._lost: dict[str, LostEngine] = {}
        self._calls: dict[str, _OpenCall] = {}
        self._failures: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._retried = 0

    def route_by_hash(self) -> None:
        """Route as veRL does with `rollout.full_determinism`, a setting that it does not pass to such a router."""
        self._full_determinism = True

    def begin_call(
        self, request_id: str, call_id: str, holder: str = "", failed: Sequence[str] = ()
    ) -> tuple[str, Any] | None:
        """Choose an engine as `acquire_server` does, and note the call.

        Args:
            request_id: the episode's id. All its turns go to one engine while that engine answers.
            holder: Ray's name of the rollout worker that calls.
            failed: engines that already failed this turn. The episode moves to another one for good.

        Returns:
            The engine's address and actor; None if there is no other engine.
        """
        if failed:
            others = [server_id for server_id in self._servers if server_id not in failed]
            if not others:
                return None
            load = self._inflight_requests
            self._request_id_to_server[request_id] = min(others, key=lambda each: (self._failures[each], load[each]))
        server_id, server = self.acquire_server(request_id)
        self._calls[call_id] = _OpenCall(server_id, holder)
        return server_id, server

    def end_call(self, call_id: str, failed: Sequence[str] = ()) -> None:
        """Note that a call was answered.

        Args:
            failed: the engines that failed the same call before. The fault was theirs.
        """
        server_id = self._end(call_id)
        if server_id is None:
            return
        self._failures[server_id] = 0
        self._retried += bool(failed)
        for each in failed:
            if self._failures[each] >= MAX_FAILURES:
                self.lose(each, f"it failed {self._failures[each]} calls in a row that other engines answered")

    def fail_call(self, call_id: str, reason: str, died: bool) -> None:
        """Note that the engine gave no answer.

        Args:
            reason: the error of the call.
            died: whether the engine's process is gone.
        """
        server_id = self._end(call_id)
        if server_id is None:
            return
        self._failures[server_id] += 1
        if died:
            self.lose(server_id, reason)

    def abandon_call(self, call_id: str) -> None:
        """Note that nobody waits for this call any more. This says nothing about the engine."""
        self._end(call_id)

    def holder_died(self, holder: str) -> None:
        """End the calls of a rollout worker that died: nobody waits for them any more."""
        for call_id in [call_id for call_id, call in self._calls.items() if call.holder == holder]:
            self._end(call_id)

    def lose(self, server_id: str, reason: str) -> None:
        """Send no more requests to the engine, and end its process, so that its callers learn of it at once."""
        if server_id in self._lost:
            return
        self._lost[server_id] = LostEngine(server_id, time.time(), reason)
        logger.error("rollout engine %s is lost: %s", server_id, reason)
        server = self._servers.get(server_id)
        self.remove_servers([server_id])
        if isinstance(server, ActorHandle):
            ray.kill(server)

    def add_servers(self, servers: dict[str, Any]) -> None:
        """Add engines as veRL does, except lost ones: `separate_async` adds its engines again and again."""
        super().add_servers({name: server for name, server in servers.items() if name not in self._lost})

    def look(self) -> EngineStatus:
        """Return what is known about the engines now."""
        open_calls = Counter(call.server_id for call in self._calls.values())
        return EngineStatus(
            tuple(self._lost.values()), len(self._servers), dict(open_calls), dict(self._ended), self._retried
        )

    def _end(self, call_id: str) -> str | None:
        """End a call and return its engine; None if it has ended already."""
        call = self._calls.pop(call_id, None)
        if call is None:
            return None
        self.release_server(call.server_id)
        self._ended[call.server_id] += 1
        return call.server_id


@dataclass
class _Call:
    """One call to an engine, on its way through veRL's client."""

    call_id: str
    failed: tuple[str, ...]
    server_id: str = ""
    """The engine that the router chose."""


_CALL: ContextVar[_Call] = ContextVar("arpo_verl_engine_call")


class _NoOtherEngineError(Exception):
    """Every engine has failed this call."""


class EngineClient(LLMServerClient):
    """veRL's client, which repeats a failed call on another engine, with the same prompt.

    One error does not show whether the engine or the request is at fault. If a second engine answers, the first one was
    at fault. If it fails too, the request was, and the error is raised. An engine whose process is gone is always at
    fault; it does not count as a try.
    """

    async def generate(self, request_id: str, **kwargs: Any) -> TokenOutput:
        """Generate as veRL's client does, with the same arguments.

        Raises:
            Exception: the first engine's, if a second one failed too or there is no other.
        """
        errors: dict[str, Exception] = {}
        refused = 0
        while True:
            call = _Call(uuid4().hex, tuple(errors))
            _CALL.set(call)
            try:
                output: TokenOutput = await super().generate(request_id, **kwargs)
            except _NoOtherEngineError:
                raise next(iter(errors.values())) from None
            except Exception as error:
                if not call.server_id:
                    raise
                died = is_death(error)
                await self._load_balancer.fail_call.remote(call.call_id, in_words(error), died)
                errors[call.server_id] = error
                refused += not died
                if refused > 1:
                    raise next(iter(errors.values())) from None
                logger.warning("rollout engine %s failed a call: %s", call.server_id, in_words(error))
            except BaseException:
                self._load_balancer.abandon_call.remote(call.call_id)
                raise
            else:
                self._load_balancer.end_call.remote(call.call_id, call.failed)
                return output

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        call = _CALL.get()
        chosen = await self._load_balancer.begin_call.remote(request_id, call.call_id, _this_actor(), call.failed)
        if chosen is None:
            raise _NoOtherEngineError
        call.server_id, server = chosen
        return call.server_id, server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        """Do nothing: `generate` reports how the call ended."""


class AsyncEngineClient(FullyAsyncLLMServerClient, EngineClient):
    """The same for asynchronous modes. Each part of a reply that a weight update interrupted is a call of its own."""


def watched(client: Any) -> Any:
    """Replace veRL's client by one that reports to the router. Leave other clients, and those of other routers."""
    if type(client) not in (LLMServerClient, FullyAsyncLLMServerClient):
        return client
    router = client._load_balancer
    if not hasattr(router, "fail_call"):
        logger.warning(
            "rollout.router_config_path does not name the router of arpo_verl: if an engine dies, all sessions on it "
            "are lost"
        )
        return client
    if isinstance(client, FullyAsyncLLMServerClient):
        return AsyncEngineClient(client.config, router, only_hybrid=client._only_hybrid)
    return EngineClient(client.config, router)


def _this_actor() -> str:
    """Return Ray's name of the actor that this process is, or ''."""
    with contextlib.suppress(RuntimeError):
        return ray.get_runtime_context().get_actor_id() or "" if ray.is_initialized() else ""
    return ""
