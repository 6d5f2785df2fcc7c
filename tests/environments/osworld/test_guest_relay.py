"""What a sandbox sees of a guest that it cannot connect to."""

import asyncio
import errno
import socket

import pytest
import requests

from arpo_verl.environments.osworld.verdict import guest_relay


async def _never(*_):
    await asyncio.Event().wait()


async def _unreachable(*_):
    raise OSError(errno.EHOSTUNREACH, "No route to host")


async def _refused(*_):
    raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@pytest.fixture
def ask(monkeypatch):
    """Ask through a relay whose connections to the guest come to `connect`."""
    relays = []

    def asked(connect):
        monkeypatch.setattr(guest_relay, "_connect", connect)
        monkeypatch.setattr(guest_relay, "CONNECT_TIMEOUT_S", 1.0)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        relays.append(guest_relay.GuestRelay([listener], {9222: ("192.0.2.1", 9222)}))
        with requests.Session() as session:
            session.trust_env = False
            return session.get(f"http://127.0.0.1:{port}/json/version", timeout=60)

    yield asked
    for relay in relays:
        relay.close()


@pytest.mark.parametrize("connect", [_never, _unreachable])
def test_a_guest_that_is_not_reached_is_no_program_that_was_closed(ask, connect):
    """Both were a reset connection, which is scored as a browser that the policy closed."""
    assert ask(connect).status_code == 504


def test_a_program_that_does_not_listen_is_a_reset_connection(ask):
    with pytest.raises(requests.ConnectionError):
        ask(_refused)
