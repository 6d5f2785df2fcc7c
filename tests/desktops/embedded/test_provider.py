"""The provider: clean starts, reverts and refusals."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import time
import weakref

import pytest
from PIL import Image
from support.desktop_harness import attach, eventually, running, sandbox_processes

from arpo_verl.desktops.embedded import guest_process, packages, sandbox, users
from arpo_verl.desktops.embedded.provider import EmbeddedProvider
from arpo_verl.errors import ConfigError, DesktopBootError, MissingDependencyError

pytestmark = pytest.mark.desktop


TIMES = (0, -1, float("nan"), float("inf"), "1")


@pytest.mark.parametrize(
    "option, values",
    [
        ("screen_size", ((10, 10), (640, 99999), (640,), (640.0, 480), "640x480", (0, 0), (True, 480))),
        ("command_timeout_s", TIMES),
        ("boot_timeout_s", TIMES),
        ("memory_mib", (255, 1.5)),
        ("pids", (0, True)),
        ("cpus", (0, -1, float("inf"), "2")),
    ],
)
def test_an_option_out_of_range_is_refused_before_anything_starts(option, values):
    for value in values:
        with pytest.raises(ConfigError, match=f"{option} must be"):
            EmbeddedProvider(**{option: value})


def refused_namespaces(patch, folder):
    """A bubblewrap that this machine lets do nothing."""
    refusal = folder / "bwrap"
    refusal.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusal.chmod(0o755)
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    "lose, error, message",
    [
        (
            lambda patch, _: patch.setitem(packages.BASE, "xvfb", "no-such-program"),
            MissingDependencyError,
            r"no-such-program; run: apt-get install .* xvfb",
        ),
        (
            lambda patch, _: patch.setitem(sandbox.GUEST_MODULES, "no_such_module", "no-such-package"),
            MissingDependencyError,
            "no-such-package; run: pip install",
        ),
        (refused_namespaces, DesktopBootError, "kernel.apparmor_restrict_unprivileged_userns=0"),
    ],
    ids=["program", "Python package", "namespaces"],
)
def test_what_is_missing_is_named_with_the_remedy(lose, error, message, monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox, "_templates", weakref.WeakValueDictionary())  # as in a process without a desktop
    lose(monkeypatch, tmp_path)
    with pytest.raises(error, match=message):
        EmbeddedProvider().start_emulator()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_users_that_can_no_longer_be_had_are_not_taken_for_root(monkeypatch):
    """A template that gives each desktop a user of the machine is none for desktops in user namespaces."""
    with running() as ours:
        monkeypatch.setattr(users, "available_ids", lambda: None)
        with running() as theirs:
            assert theirs.sh("id -un; id -u") == "user\n1000"
        monkeypatch.setattr(sandbox, "template_for", lambda _: ours.provider._guest._template)
        with pytest.raises(DesktopBootError, match="never root"):
            EmbeddedProvider().start_emulator()


def test_address_before_the_start_is_refused():
    with pytest.raises(DesktopBootError, match="call start first"):
        EmbeddedProvider().get_ip_address()


def test_fresh_desktop_shows_a_plain_background_of_the_configured_size():
    with running(screen_size=(800, 600)) as desktop:
        image = Image.open(io.BytesIO(desktop.controller.get_screenshot()))
        assert image.size == (800, 600) and desktop.controller.get_vm_screen_size() == {"width": 800, "height": 600}
        assert len(image.crop((0, 0, 780, 580)).getcolors()) == 1  # the pointer is in the corner


def test_an_untouched_desktop_is_not_booted_again_and_a_used_one_is_another_fork_of_the_same_template(desktop):
    provider = desktop.provider
    guest, address = provider._guest, provider.get_ip_address()
    provider.revert_to_snapshot()
    provider.start_emulator()
    assert provider._guest is guest
    desktop.controller.get_vm_screen_size()
    before = set(sandbox_processes(provider))
    provider.start_emulator()
    assert before.isdisjoint(sandbox_processes(provider)) and provider._guest._template is guest._template
    assert provider.get_ip_address() == address


def test_two_desktops_do_not_meet():
    with running() as first, running() as second:
        first.sh("touch ~/only-here")
        first.controller.execute_python_command("pyautogui.moveTo(11, 12)")
        for desktop, word in ((first, "one"), (second, "two")):  # the same port in both
            desktop.setup._launch_setup(["socat", "tcp-listen:9222,fork", f"exec:echo {word}"])
        said = [eventually(lambda d=d: _first_line(d.setup.chromium_port)) for d in (first, second)]
        assert said == [b"one\n", b"two\n"]
        assert second.sh("ls ~/only-here; true") != "/home/user/only-here"
        assert "11, 12" not in second.controller.execute_python_command("print(tuple(pyautogui.position()))")["output"]


def _first_line(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        return connection.recv(100)


def test_stop_leaves_no_process_and_no_port():
    provider = EmbeddedProvider()
    provider.start_emulator()
    processes = sandbox_processes(provider)
    ports = [int(port) for port in provider.get_ip_address().split(":")[1:] if port != "0"]
    provider.stop_emulator()
    provider.stop_emulator()
    for port in ports:  # first: they are anybody's now
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 60)
    eventually(lambda: not [pid for pid in processes if os.path.exists(f"/proc/{pid}")])  # the template buries it
    provider.start_emulator()  # and it can come back
    assert attach(provider).controller.get_screenshot()
    provider.stop_emulator()


def test_forgotten_provider_ends_its_desktop():
    provider = EmbeddedProvider()
    provider.start_emulator()
    port, processes = int(provider.get_ip_address().split(":")[1]), sandbox_processes(provider)
    del provider
    eventually(lambda: not _listens(port))
    eventually(lambda: not [pid for pid in processes if os.path.exists(f"/proc/{pid}")])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_desktop_whose_policy_killed_everything_answers_nothing_and_reverts(desktop):
    desktop.setup._launch_setup("kill -9 -1", shell=True)
    eventually(lambda: desktop.controller.get_screenshot() is None)
    start = time.monotonic()
    assert desktop.controller.get_screenshot() is None
    assert time.monotonic() - start < 9  # an end at once, not the client's time-out of 10 s
    desktop.provider.revert_to_snapshot()
    assert desktop.controller.get_screenshot()


def test_sandbox_that_died_is_replaced(desktop):
    desktop.provider._guest._process.kill()
    eventually(lambda: not desktop.provider.is_alive())
    desktop.provider.revert_to_snapshot()
    assert desktop.controller.get_screenshot()


def test_sandbox_that_dies_before_it_reads_its_next_command_is_replaced(desktop, monkeypatch):
    assert desktop.controller.get_screenshot()  # unused, it would stay as it is
    processes = sandbox_processes(desktop.provider)
    is_readable = guest_process._is_readable

    def send_all(number):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # some end by themselves, or with another one
                os.kill(process, number)

    def killed_meanwhile(channel, timeout_s):
        send_all(signal.SIGKILL)
        processes.clear()
        return is_readable(channel, timeout_s)

    send_all(signal.SIGSTOP)
    monkeypatch.setattr(guest_process, "_is_readable", killed_meanwhile)
    desktop.provider.revert_to_snapshot()
    assert desktop.controller.get_screenshot()


def test_packages_script_lists_and_finds_what_is_installed():
    def ask(*words):
        done = subprocess.run([sys.executable, packages.__file__, *words], capture_output=True, text=True)
        return done.returncode or done.stdout.split()

    assert {"xvfb", "openbox", "bubblewrap"} <= set(ask("list")) and "gimp" not in ask("list")
    assert {"gimp", "vlc", "xvfb"} <= set(ask("list", "osworld"))
    assert packages.missing_packages(packages.BASE) == []
    assert ask("missing", "osworld") == packages.missing_packages(
        {**packages.BASE, **packages.TASKS, **packages.OSWORLD}
    )
    assert ask() == ask("list", "no-such-group") == 2
