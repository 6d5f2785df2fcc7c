"""However the owner ends, nothing of its desktop stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.desktop_harness import attach, eventually, process_tree

from arpo_verl.desktop.provider import EmbeddedProvider

pytestmark = pytest.mark.desktop

OWNER = """
import os, signal, sys, threading, time
# A shell without job control has its background commands ignore Ctrl-C, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
from arpo_verl.desktop.provider import EmbeddedProvider
provider = EmbeddedProvider()
provider.start_emulator()
print(provider._guest._process.pid, provider.get_ip_address(), flush=True)
{then}
"""
PLACES = ("/tmp", "/run", "/dev/shm", "/var/tmp")


class Owner:
    """Another process with a desktop."""

    def __init__(self, then: str):
        self._before = self._entries()
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER.format(then=then)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        pid, address = self.process.stdout.readline().split()
        self.processes = process_tree(int(pid))
        self.ports = [int(port) for port in address.split(":")[1:] if port != "0"]

    @staticmethod
    def _entries() -> set[str]:
        return {str(path) for place in PLACES for path in Path(place).iterdir()}

    def assert_nothing_stays(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.wait(60)
        eventually(lambda: not [pid for pid in self.processes if os.path.exists(f"/proc/{pid}")])
        for port in self.ports:
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)) != 0
        left = {name for name in self._entries() - self._before if "xvfb" in name.lower() or "X11" in name}
        assert not left


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_owner(number):
    owner = Owner("time.sleep(60)")
    assert len(owner.processes) >= 6
    os.kill(owner.process.pid, number)
    owner.assert_nothing_stays()


@pytest.mark.parametrize("then", ["pass", "raise RuntimeError", "os._exit(3)", "del provider; time.sleep(0.1)"])
def test_owner_that_ends_without_stopping_it(then):
    Owner(then).assert_nothing_stays()


def test_owner_killed_in_the_middle_of_a_boot():
    owner = Owner("threading.Timer(0.03, os._exit, [1]).start(); provider._guest.boot(provider.screen_size, 1, 9)")
    owner.assert_nothing_stays()


def test_fork_of_the_owner_does_not_keep_it():
    owner = Owner("child = os.fork() or time.sleep(5); os._exit(0)")
    owner.assert_nothing_stays()


def test_desktop_outlives_the_thread_that_started_it():
    provider = EmbeddedProvider()
    thread = threading.Thread(target=provider.start_emulator)
    thread.start()
    thread.join()
    try:
        assert attach(provider).controller.get_screenshot() and provider.is_alive()
    finally:
        provider.stop_emulator()
