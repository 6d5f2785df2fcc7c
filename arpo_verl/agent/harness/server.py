"""A port of this machine's loopback: `/v1/chat/completions` and the desktop of each episode behind its own token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from arpo_verl.agent.harness.chat_completions import read_request, write_stream
from arpo_verl.agent.harness.client import HarnessClient
from arpo_verl.agent.harness.guest_proxy import GuestProxy
from arpo_verl.errors import GenerationError, RequestError
from arpo_verl.lib.untrusted import MOST_JSON_BYTES

MOST_AT_ONCE = 16
"""Requests of one episode: each may take `MOST_JSON_BYTES` of memory."""

_logger = logging.getLogger(__name__)
# Anybody who reaches the port could fill the trainer's log with what is no HTTP.
_logger.addFilter(lambda record: not isinstance((record.exc_info or (None, None))[1], HttpProcessingError))


class HarnessServer:
    """The server of one event loop."""

    def __init__(self) -> None:
        self.port = 0
        self.guests = GuestProxy()
        self._clients: dict[str, HarnessClient] = {}

    async def start(self) -> HarnessServer:
        """Listen on a free port."""
        app = web.Application(client_max_size=MOST_JSON_BYTES)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_route("*", "/{path:.*}", self.guests.answer)
        # A client that has gone gets no reply, and none of it is kept.
        # Nor is a body unpacked: a bomb has any size.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, auto_decompress=False, logger=_logger)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = int(runner.addresses[0][1])
        return self

    @contextmanager
    def serving(self, client: HarnessClient) -> Iterator[None]:
        """Answer those who have the client's token as it does, as long as the block lasts."""
        self._clients[client.token] = client
        try:
            yield
        finally:
            del self._clients[client.token]

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        client = self._clients.get(_token(request))
        if client is None:
            return _problem("the token must be a running episode's", 401, "invalid_api_key")
        if client.running >= MOST_AT_ONCE:
            return _problem(f"an episode may make {MOST_AT_ONCE} requests at once", 429, "rate_limit")
        client.running += 1
        try:
            asked = await asyncio.to_thread(read_request, await request.read())
            answer = await client.complete(asked)
        except RequestError as error:
            return _problem(str(error), error.status, error.code)
        except GenerationError as error:
            return _problem(str(error), 503, "engine_failed")
        finally:
            client.running -= 1
        return await _burst(request, answer, asked.stream_usage) if asked.stream else web.json_response(answer)

    async def _models(self, request: web.Request) -> web.Response:
        if _token(request) not in self._clients:
            return _problem("the token must be a running episode's", 401, "invalid_api_key")
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "arpo_verl"}
        return web.json_response({"object": "list", "data": [model]})


_SERVERS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[HarnessServer]] = WeakKeyDictionary()


async def shared_server() -> HarnessServer:
    """Return the server of this event loop, which runs as long as its process."""
    loop = asyncio.get_running_loop()
    if loop not in _SERVERS:
        _SERVERS[loop] = loop.create_task(HarnessServer().start())
    return await asyncio.shield(_SERVERS[loop])


def _token(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


def _problem(message: str, status: int, code: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": code, "code": code}}, status=status)


async def _burst(request: web.Request, answer: Mapping[str, Any], with_usage: bool) -> web.StreamResponse:
    """Send a whole reply as a stream of one piece."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in write_stream(answer, with_usage):
        await response.write(event)
    await response.write_eof()
    return response
