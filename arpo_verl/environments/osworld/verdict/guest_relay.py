"""This process serves a sandbox's ports: a connection to one of them goes to this desktop, or nowhere.

The sandbox hands over its listening sockets before it reads anything from the desktop. Its own network has no other way
out, so only this module decides which host and port it reaches.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import logging
import socket
import struct
import urllib.request
from collections.abc import Awaitable, Callable, Collection, Mapping
from urllib.parse import unquote, urlsplit

from arpo_verl.desktop import relay

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 128
"""Most connections at once. Playwright and an HTTP session need a few."""
CONNECT_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 16
_HTTPS = 443
_LOOP_TIMEOUT_S = 30.0
Address = tuple[str, int]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Opener = Callable[[Streams], Awaitable[Streams]]


class GuestRelay:
    """This relay connects a sandbox's ports with the desktop, until it is closed.

    Args:
        listeners: the sandbox's listening sockets, which the relay now owns.
        addresses: where the first listeners lead, in order.
        hosts: internet hosts that the last listener, a proxy for HTTPS, leads to; if empty, there is no such listener.
    """

    def __init__(self, listeners: list[socket.socket], addresses: Mapping[int, Address], hosts: Collection[str] = ()):
        self._listeners = listeners
        self._hosts = frozenset(host.lower() for host in hosts)
        self._addresses = list(addresses.values())
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = relay.event_loop()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_LOOP_TIMEOUT_S)

    def close(self) -> None:
        """Close the ports and their connections."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_LOOP_TIMEOUT_S)

    async def _listen(self) -> None:
        openers: list[_Opener] = [functools.partial(_open_guest, address) for address in self._addresses]
        if self._hosts:
            openers.append(self._open_host)
        for listener, opener in zip(self._listeners, openers, strict=True):
            listener.setblocking(False)
            serve = self._server(opener)
            self._servers.append(await asyncio.start_server(serve, sock=listener, limit=_CHUNK_BYTES))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()

    def _server(self, opener: _Opener) -> Callable[..., None]:
        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(self._tasks) >= MAX_CONNECTIONS:
                _reset(writer)
                return
            task = self._loop.create_task(self._serve((reader, writer), opener))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return serve

    async def _serve(self, sandbox: Streams, opener: _Opener) -> None:
        try:
            guest = await asyncio.wait_for(opener(sandbox), CONNECT_TIMEOUT_S)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            logger.debug("a sandbox's connection led nowhere: %r", error)
            if not isinstance(error, (ConnectionError, PermissionError)):
                await _tell_unreachable(sandbox)
            _reset(sandbox[1])
            return
        except BaseException:
            _reset(sandbox[1])
            raise
        try:
            await asyncio.gather(_pump(sandbox[0], guest[1]), _pump(guest[0], sandbox[1]))
        except OSError:
            _reset(sandbox[1])
        finally:
            for _, writer in (sandbox, guest):
                writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _open_host(self, sandbox: Streams) -> Streams:
        """Answer an HTTP CONNECT by a connection to an allowed host, through this process's own proxy if it has one.

        Raises:
            OSError: the recipe does not allow the host, or it cannot be reached.
        """
        head = await sandbox[0].readuntil(b"\r\n\r\n")
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split()
        host, _, port = words[1].rpartition(":") if len(words) == 3 and words[0] == "CONNECT" else ("", "", "")
        if host.lower() not in self._hosts or port != str(_HTTPS):
            sandbox[1].write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await sandbox[1].drain()
            raise PermissionError(f"an evaluator asked for {words[1:2]}, which is not in environment.evaluator_hosts")
        streams = await _connect_https(host)
        sandbox[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return streams


async def _open_guest(address: Address, sandbox: Streams) -> Streams:
    return await _connect(*address)


async def _connect(host: str, port: int) -> Streams:
    return await asyncio.open_connection(host, port, limit=_CHUNK_BYTES)


async def _connect_https(host: str) -> Streams:
    proxy = urllib.request.getproxies().get("https")
    if not proxy or urllib.request.proxy_bypass(host):
        return await _connect(host, _HTTPS)
    parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    reader, writer = await _connect(parts.hostname or "", parts.port or 3128)
    login = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}\r\n"
    writer.write(f"CONNECT {host}:{_HTTPS} HTTP/1.1\r\nHost: {host}:{_HTTPS}\r\n{login}\r\n".encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    if answer.split()[1:2] != [b"200"]:
        writer.close()
        raise ConnectionRefusedError(f"the proxy {parts.hostname} does not lead to {host}")
    return reader, writer


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while chunk := await source.read(_CHUNK_BYTES):
        target.write(chunk)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


async def _tell_unreachable(sandbox: Streams) -> None:
    """Answer the request with a server error, so that an unreachable guest does not look like a closed program."""
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(sandbox[0].read(_CHUNK_BYTES), CONNECT_TIMEOUT_S)
        sandbox[1].write(b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await sandbox[1].drain()
        sandbox[1].write_eof()
        await asyncio.wait_for(sandbox[0].read(), CONNECT_TIMEOUT_S)  # a reset now could overtake it


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset the connection instead of ending it, as if nobody listened."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
