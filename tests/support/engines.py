"""Rollout engines in this process, behind veRL's balancer as our router extends it, and our client."""

import asyncio
from types import SimpleNamespace

from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from virtual_clock import VirtualLoop

from arpo_verl.plugin.engines import EngineRouter, watched

# A call of a dead actor's, as Ray answers it.
FAILS_IN_S = 0.01
CONFIG = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm", "full_determinism": False}}})


def simulate(work):
    """The coroutine's result, by a clock that passes when nothing is left to do."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class Remote:
    """An object of this process as Ray shows an actor: `actor.method.remote(...)`, awaited or not."""

    def __init__(self, actor):
        self._actor = actor

    def __getattr__(self, name):
        method = getattr(self._actor, name)

        def remote(*args, **kwargs):
            result = method(*args, **kwargs)
            return result if asyncio.iscoroutine(result) else _Done(result)

        return SimpleNamespace(remote=remote)


class _Done:
    """A call's result, which is there at once."""

    def __init__(self, result):
        self.result = result

    def __await__(self):
        return self.result
        yield


class Engine:
    """Writes a reply of one token, its own number, after `seconds`; or raises what `fails` is, in a moment."""

    def __init__(self, number, fails=None, seconds=0.0):
        self.number, self.fails, self.seconds = number, fails, seconds
        self.prompts = []
        self.died = asyncio.Event()

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        self.prompts.append(list(prompt_ids))
        if self.fails is not None:
            await asyncio.sleep(FAILS_IN_S)
            raise self.fails
        waiting = asyncio.create_task(self.died.wait())
        await asyncio.wait({waiting}, timeout=self.seconds)
        waiting.cancel()
        if self.died.is_set():
            raise ActorDiedError
        return TokenOutput(token_ids=[self.number], stop_reason="completed", extra_fields={"global_steps": 1})


class Router(EngineRouter):
    """The real one; to end an engine's process is to set `died`."""

    def lose(self, server_id, reason):
        server = self._servers.get(server_id)
        super().lose(server_id, reason)
        if server is not None:
            server._actor.died.set()
            server._actor.fails = ActorDiedError()


def addresses(engines):
    return {f"engine-{engine.number}": Remote(engine) for engine in engines}


def make_router(engines, router_class=Router):
    return router_class(addresses(engines), {})


def make_client(router, is_async=False):
    """Ours, as the loop manager makes it of veRL's."""
    stock = FullyAsyncLLMServerClient if is_async else LLMServerClient
    return watched(stock(CONFIG, Remote(router)))


def ask(client, request_id, prompt_ids=(1, 2)):
    return client.generate(request_id, prompt_ids=list(prompt_ids), sampling_params={"max_tokens": 8})
