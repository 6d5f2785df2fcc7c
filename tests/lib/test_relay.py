"""The ports that lead into a desktop or out of a sandbox, on asyncio's own event loop and on uvloop's."""

import asyncio
import asyncio.selector_events
import contextlib
import errno
import hashlib
import os
import socket
import threading

import pytest
import requests
import uvloop
from support import desktop_harness

from arpo_verl.lib import relay as relay_module
from arpo_verl.lib.relay import HOST, Relay, to_address, to_passed_socket

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@contextlib.contextmanager
def running(new_loop):
    """A loop of `new_loop`'s in a thread, as the relay's."""
    loop = new_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(relay_module, "_running", (os.getpid(), loop))
            yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(params=sorted(LOOPS))
def loop(request):
    with running(LOOPS[request.param]):
        yield


def echo(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


def guest_that_echoes(descriptor):
    guest = socket.socket(fileno=os.dup(descriptor))
    threading.Thread(target=echo, args=(guest,), daemon=True).start()


@contextlib.contextmanager
def relaying(opener):
    relay = Relay([(socket.create_server((HOST, 0)), opener)])
    try:
        yield relay
    finally:
        relay.close()


def connected(relay):
    return socket.create_connection((HOST, relay.ports[0]), timeout=120)


@contextlib.contextmanager
def relayed(hand_over):
    with relaying(to_passed_socket(hand_over)) as relay, connected(relay) as client:
        yield client


def received(client):
    return b"".join(iter(lambda: client.recv(1 << 20), b""))


def test_megabytes_come_through_in_order_and_an_end_of_one_direction_leaves_the_other(loop):
    sent = os.urandom(8 << 20)  # more than any buffer on the way: reading and writing are paused and resumed
    with relayed(guest_that_echoes) as client:
        answers = []
        reader = threading.Thread(target=lambda: answers.append(received(client)))
        reader.start()
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        reader.join()
        assert [hashlib.sha256(answer).hexdigest() for answer in answers] == [hashlib.sha256(sent).hexdigest()]


def test_what_a_client_sends_before_the_guest_is_there_is_not_lost_nor_its_end(loop, monkeypatch):
    # Debian 12's Python 3.11.2 keeps reading after a pause in `connection_made`: the first request of every
    # connection got lost there, and each call on a desktop hung. uvloop does so too.
    monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "pause_reading", lambda transport: None)
    sent = threading.Event()

    def hand_over(descriptor):
        assert sent.wait(120)
        guest_that_echoes(descriptor)

    with relayed(hand_over) as client:
        client.sendall(b"early")
        client.shutdown(socket.SHUT_WR)
        sent.set()
        assert received(client) == b"early"


def test_client_of_a_guest_that_is_gone_is_hung_up_on(loop):
    def gone(descriptor):
        raise OSError("gone")

    with contextlib.suppress(ConnectionResetError), relayed(gone) as client:
        assert client.recv(1) == b""


def test_closed_relay_ends_its_connections(loop):
    with relaying(to_passed_socket(guest_that_echoes)) as relay, connected(relay) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        relay.close()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


def test_a_fork_keeps_no_port_open_whatever_relays_were_closed_before_it(loop):
    """A closed relay that somebody still had ended the closing in the fork, so other relays' ports stayed open."""
    openers = [to_passed_socket(guest_that_echoes)] * 3
    relays = [Relay([(socket.create_server((HOST, 0)), opener)]) for opener in openers]
    relays[0].close()
    ours, childs = socket.socketpair()
    if (child := os.fork()) == 0:
        ours.close()
        childs.send(b"forked")
        childs.recv(1)
        os._exit(0)
    childs.close()
    assert ours.recv(10) == b"forked"
    for relay in relays[1:]:
        relay.close()
        with pytest.raises(ConnectionRefusedError):
            connected(relay)
    ours.close()
    os.waitpid(child, 0)


def test_a_client_that_leaves_its_answer_unread_still_counts_as_a_connection(loop, monkeypatch):
    """A sandbox could fill the table of open files: its finished connections, never read, stayed outside the count."""
    monkeypatch.setattr(relay_module, "MAX_CONNECTIONS", 1)
    pump, ended = relay_module._pump, threading.Semaphore(0)

    async def watched_pump(source, target):
        await pump(source, target)
        relay_module.event_loop().call_later(0.1, ended.release)

    def guest_that_answers(descriptor):
        guest = socket.socket(fileno=os.dup(descriptor))
        threading.Thread(target=lambda: (guest.sendall(bytes(16 << 20)), guest.close()), daemon=True).start()

    async def opener(client):
        client[1].transport.set_write_buffer_limits(1 << 25)  # an answer's end is always below the limit: here all is
        return await to_passed_socket(guest_that_answers)(client)

    monkeypatch.setattr(relay_module, "_pump", watched_pump)
    with relaying(opener) as relay, connected(relay) as client:
        client.shutdown(socket.SHUT_WR)
        assert ended.acquire(timeout=120) and ended.acquire(timeout=120)  # it has all, and the client reads nothing
        with pytest.raises(ConnectionResetError), connected(relay) as second:
            second.recv(1)


async def _never(*_):
    relay_module.CONNECT_TIMEOUT_S = 120.0  # this has begun; what follows is the client's own time
    await asyncio.Event().wait()


async def _unreachable(*_):
    raise OSError(errno.EHOSTUNREACH, "No route to host")


async def _refused(*_):
    raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@pytest.fixture
def unreached(loop, monkeypatch):
    """Return a function that gives a relay whose connections to the guest come to `connect`."""
    with contextlib.ExitStack() as stack:

        def relay_to(connect):
            monkeypatch.setattr(relay_module, "connect", connect)
            monkeypatch.setattr(relay_module, "CONNECT_TIMEOUT_S", 0.2 if connect is _never else 120.0)
            return stack.enter_context(relaying(to_address("192.0.2.1", 9222)))

        yield relay_to


def ask(relay):
    with requests.Session() as session:
        session.trust_env = False
        return session.get(f"http://{HOST}:{relay.ports[0]}/json/version", timeout=60)


@pytest.mark.parametrize("connect", [_never, _unreachable])
def test_a_guest_that_is_not_reached_is_no_program_that_was_closed(unreached, connect):
    """Both were a reset connection, which is scored as a browser that the policy closed."""
    assert ask(unreached(connect)).status_code == 504


def test_a_program_that_does_not_listen_is_a_reset_connection(unreached):
    with pytest.raises(requests.ConnectionError):
        ask(unreached(_refused))


def test_a_client_that_floods_a_relay_without_a_guest_takes_no_memory(unreached):
    """What it sent after the 504 was kept until its end or for 30 s, as many gigabytes as fit through."""
    with connected(unreached(_unreachable)) as client:
        client.sendall(b"x")
        assert b"504" in client.recv(1000)
        before = _resident_bytes()
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            for _ in range(128):
                client.sendall(bytes(1 << 20))
        assert _resident_bytes() - before < 64 << 20


def _resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.desktop
def test_embedded_desktop_boots_and_answers_where_uvloop_is_installed():
    # Which it is beside any vLLM. The relay asserted asyncio's own class of transports, and no desktop came up.
    with running(uvloop.new_event_loop):
        with desktop_harness.running() as desktop:
            assert desktop.controller.get_screenshot().startswith(b"\x89PNG")
            desktop.provider.revert_to_snapshot()
