"""The ports that lead into a desktop."""

import asyncio.selector_events
import os
import socket
import threading
import time

from arpo_verl.desktop.relay import Relay


def _echo(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


def test_what_a_client_sends_before_the_guest_is_there_is_not_lost(monkeypatch):
    # Debian 12's Python 3.11.2 keeps reading after a pause in `connection_made`: the first request of every
    # connection got lost there, and each call on a desktop hung.
    monkeypatch.setattr(asyncio.selector_events._SelectorSocketTransport, "pause_reading", lambda transport: None)

    def hand_over(port, descriptor):
        time.sleep(0.2)  # so that the client's bytes are there first
        guest = socket.socket(fileno=os.dup(descriptor))
        threading.Thread(target=_echo, args=(guest,), daemon=True).start()

    relay = Relay((5000,), hand_over)
    try:
        with socket.create_connection(("127.0.0.1", relay.ports[5000]), timeout=30) as client:
            client.sendall(b"early")
            assert client.recv(64) == b"early"
    finally:
        relay.close()
