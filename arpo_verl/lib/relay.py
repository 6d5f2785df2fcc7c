"""Ports that lead into a desktop, or out of a sandbox; one thread per process serves all of them.

A sandbox has its own network namespace, without a way out. We hold the listening sockets, and an `Opener` decides where
a connection leads: to a fixed address, or to one end of a pair of anonymous sockets whose other end the desktop gets.
So no socket file is left behind, and nobody in a sandbox chooses a host.

The thread uses the process's kind of event loop. Ray installs uvloop if it can be imported, so always beside vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_CONNECTIONS = 32
"""Most connections of a relay at once, which a hostile program can all open: each costs this process up to three
descriptors. Playwright and an HTTP session need a few, and a harness's program gets 24 requests answered at once."""
CONNECT_TIMEOUT_S = 30.0
CHUNK_BYTES = 1 << 16
"""A connection has at most some of these in memory: we read no more before the other end took it."""
_LOOP_TIMEOUT_S = 30.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Opener = Callable[[Streams], Awaitable[Streams]]
"""Returns the other end of a client's connection; it may read from the client and answer it.

It raises OSError if there is none, and then the client's connection is reset, as if nobody listened."""


class Relay:
    """Listening sockets and what they lead to, until `close`.

    Args:
        ways: the sockets, which the relay now owns, and where each leads.
    """

    def __init__(self, ways: Sequence[tuple[socket.socket, Opener]]):
        self._ways = ways
        self.ports: list[int] = [listener.getsockname()[1] for listener, _ in ways]
        self.connections = 0
        """The number of connections so far."""
        self._loop = event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._closed = False
        _relays.add(self)
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_LOOP_TIMEOUT_S)

    def close(self) -> None:
        """Close the ports and their connections."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_LOOP_TIMEOUT_S)

    def close_soon(self) -> None:
        """Close without waiting, for finalizers: they run in any thread, even in the loop's own."""
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._close()))

    async def _listen(self) -> None:
        for listener, opener in self._ways:
            listener.setblocking(False)
            server = await asyncio.start_server(self._server(opener), sock=listener, limit=CHUNK_BYTES)
            self._servers.append(server)

    async def _close(self) -> None:
        self._closed = True
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _server(self, opener: Opener) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            if self._closed or len(self._tasks) >= MAX_CONNECTIONS:
                _reset(writer)
                return
            task = self._loop.create_task(_serve((reader, writer), opener))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return serve


async def _serve(client: Streams, opener: Opener) -> None:
    ends = [client]
    try:
        ends.append(await opener(client))
        await asyncio.gather(_pump(client[0], ends[1][1]), _pump(ends[1][0], client[1]))
        for _, writer in ends:
            writer.close()
        for _, writer in ends:  # one that does not read what is left counts as a connection until it does
            await writer.wait_closed()
    except OSError as error:
        logger.debug("a relayed connection ended: %r", error)
    finally:
        for _, writer in ends:
            _reset(writer)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while chunk := await source.read(CHUNK_BYTES):
        target.write(chunk)
        await target.drain()
    if not target.is_closing():
        target.write_eof()  # the other direction may go on


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset a connection that is still open, instead of ending it, as if nobody listened."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# --- Where a connection leads ----------------------------------------------------------------------------------------


def to_passed_socket(pass_on: Callable[[int], None]) -> Opener:
    """Lead to a new pair of sockets, whose other end `pass_on` gets; it raises OSError if it cannot pass it on."""

    async def open_pair(client: Streams) -> Streams:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pass_on(theirs.fileno())
            except OSError:
                ours.close()
                raise
        return await asyncio.open_connection(sock=ours, limit=CHUNK_BYTES)

    return open_pair


def to_address(host: str, port: int) -> Opener:
    """Lead to an address; its client gets HTTP's 504 if that does not answer."""
    return answering(lambda client: connect(host, port))


async def connect(host: str, port: int) -> Streams:
    """Connect to an address.

    Raises:
        OSError: it does not answer.
    """
    return await asyncio.open_connection(host, port, limit=CHUNK_BYTES)


def answering(opener: Opener) -> Opener:
    """Answer a client's request with HTTP's 504 if `opener` fails, unless its connection or request was refused.

    So an unreachable guest does not look like a closed program.
    """

    async def open_or_answer(client: Streams) -> Streams:
        try:
            return await asyncio.wait_for(opener(client), CONNECT_TIMEOUT_S)
        except (ConnectionError, PermissionError):
            raise
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(_answer_unreachable(client), 2 * CONNECT_TIMEOUT_S)
            raise ConnectionResetError(f"it led nowhere: {error!r}") from error

    return open_or_answer


async def _answer_unreachable(client: Streams) -> None:
    reader, writer = client
    await reader.read(CHUNK_BYTES)
    writer.write(b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    writer.write_eof()
    while await reader.read(CHUNK_BYTES):  # a reset now could overtake the answer
        pass


# --- The thread ------------------------------------------------------------------------------------------------------

_relays: weakref.WeakSet[Relay] = weakref.WeakSet()
_lock = threading.Lock()
_running: tuple[int, asyncio.AbstractEventLoop] | None = None


def event_loop() -> asyncio.AbstractEventLoop:
    """Return this process's loop, which runs in its own thread; a fork starts a new one."""
    global _running
    with _lock:
        if _running is None or _running[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="desktop-relay", daemon=True).start()
            _running = (os.getpid(), loop)
        return _running[1]


def _forget_after_fork() -> None:
    """Close the ports in a fork of the owner."""
    global _lock
    _lock = threading.Lock()
    for relay in list(_relays):
        for listener, _ in relay._ways:
            if (descriptor := listener.detach()) >= 0:  # uvloop's sockets do not close otherwise
                os.close(descriptor)


os.register_at_fork(after_in_child=_forget_after_fork)
