"""Loopback ports of the host lead into a desktop; one thread per process serves all of them.

The thread uses the process's kind of event loop. Ray installs uvloop if it can be imported, so always beside vLLM. Its
transports do not derive from asyncio's, and they read on after a `pause_reading` in `connection_made`.

The desktop has its own network namespace and no port of the host. For each connection we make a pair of anonymous
sockets, pass one end to the guest, and copy bytes between the other end and the client. So no socket file can be left
behind, and the guest holds no socket of the host's network.
"""

from __future__ import annotations

import array
import asyncio
import functools
import os
import socket
import threading
import weakref
from collections.abc import Callable
from typing import cast

HOST = "127.0.0.1"
_LOOP_TIMEOUT_S = 30.0


class Relay:
    """These are the listening ports of one desktop."""

    def __init__(self, guest_ports: tuple[int, ...], send_to_guest: Callable[[int, int], None]):
        """Open a port for each of `guest_ports`.

        Args:
            guest_ports: ports as the guest knows them.
            send_to_guest: called with a guest port and a descriptor to pass on; raises OSError if it cannot.
        """
        self._send = send_to_guest
        self._loop = event_loop()
        self._open: set[asyncio.Transport] = set()
        self._servers: list[asyncio.Server] = []
        self.connections = 0
        """The number of connections so far."""
        self._listeners = {port: socket.create_server((HOST, 0)) for port in guest_ports}
        _relays.add(self)
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_LOOP_TIMEOUT_S)

    @property
    def ports(self) -> dict[int, int]:
        """The host's port for each guest port."""
        return {guest: listener.getsockname()[1] for guest, listener in self._listeners.items()}

    def close(self) -> None:
        """Close the ports and their connections."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_LOOP_TIMEOUT_S)

    def close_soon(self) -> None:
        """Close without waiting, for finalizers: they run in any thread, even in the loop's own."""
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._close()))

    async def _listen(self) -> None:
        for port, listener in self._listeners.items():
            client = functools.partial(_Client, self, port)
            self._servers.append(await self._loop.create_server(client, sock=listener))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for transport in list(self._open):
            transport.abort()

    def _connect(self, port: int) -> socket.socket:
        """Return our end of a new connection to the guest.

        Raises:
            OSError: the guest is gone.
        """
        self.connections += 1
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._send(port, theirs.fileno())
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return ours


class _End(asyncio.Protocol):
    """This is one end of a connection; it writes what it receives to its peer."""

    def __init__(self, relay: Relay):
        self.relay = relay
        self.peer: _End | None = None
        self.transport: asyncio.Transport | None = None
        self.ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.relay._open.add(self.transport)

    def data_received(self, data: bytes) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self.peer is None or self.peer.transport is None or self.peer.ended:
            return False  # this closes this end, and `connection_lost` then closes the other
        self.peer.transport.write_eof()
        return True  # the other direction may go on

    def connection_lost(self, exc: Exception | None) -> None:
        assert self.transport is not None
        self.relay._open.discard(self.transport)
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is None or self.peer.transport is None or self.peer.transport.is_closing() or self.peer.ended:
            return
        self.peer.transport.resume_reading()


class _Client(_End):
    """This is the client's end; it keeps what the client sends before the guest's end is joined to it."""

    def __init__(self, relay: Relay, port: int):
        super().__init__(relay)
        self._port = port
        self._early = b""
        self._joined = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        try:
            connection = self.relay._connect(self._port)
        except OSError:
            self.transport.abort()
            return
        self.transport.pause_reading()
        self.peer = _End(self.relay)
        self.peer.peer = self
        self._joining = self.relay._loop.create_task(self._join(connection, self.peer))

    def data_received(self, data: bytes) -> None:
        # uvloop, and Python before 3.11.4 (Debian 12's own), read on after a `pause_reading` in `connection_made`.
        if self._joined:
            super().data_received(data)
        else:
            self._early += data

    def eof_received(self) -> bool:
        if self._joined:
            return super().eof_received()
        self.ended = True
        return True

    async def _join(self, connection: socket.socket, guest: _End) -> None:
        await self.relay._loop.create_connection(lambda: guest, sock=connection)
        assert self.transport is not None and guest.transport is not None
        if self.transport.is_closing():
            guest.transport.close()
            return
        guest.transport.write(self._early)
        self._early, self._joined = b"", True
        if self.ended:
            guest.transport.write_eof()
        else:
            self.transport.resume_reading()


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


def when_readable(descriptor: int, act: Callable[[], object]) -> None:
    """Call `act` once, in a thread, when `descriptor` is readable, as a process's descriptor is at its end."""
    loop, duplicate = event_loop(), os.dup(descriptor)

    def readable() -> None:
        loop.remove_reader(duplicate)
        os.close(duplicate)
        try:
            threading.Thread(target=act, name="desktop-end", daemon=True).start()
        except RuntimeError as error:
            # From Python 3.12 on, an ending process cannot start threads; then there is nothing left to do.
            if "interpreter shutdown" not in str(error):
                raise

    loop.call_soon_threadsafe(loop.add_reader, duplicate, readable)


def pass_descriptor(channel: socket.socket, message: bytes, fd: int) -> None:
    """Send `message` and a copy of the descriptor `fd` on a Unix socket.

    Raises:
        OSError: the other end is gone, or takes no more.
    """
    channel.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])


def _forget_after_fork() -> None:
    """Close the ports in a fork of the owner."""
    global _lock
    _lock = threading.Lock()
    for relay in list(_relays):
        for listener in relay._listeners.values():
            os.close(listener.detach())


os.register_at_fork(after_in_child=_forget_after_fork)
