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
from support.desktop_harness import attach, eventually, sandbox_processes

from arpo_verl.desktops.embedded import guest_process, packages, template, users
from arpo_verl.desktops.embedded.provider import EmbeddedProvider
from arpo_verl.errors import ConfigError, DesktopBootError, MissingDependencyError

pytestmark = pytest.mark.desktop


@pytest.mark.parametrize("size", [(10, 10), (640, 99999), (640,), (640.0, 480), "640x480", (0, 0), (True, 480)])
def test_screen_size_that_the_x_server_cannot_give_is_refused_before_anything_starts(size):
    with pytest.raises(ConfigError, match=r"screen_size must be .* from \[160, 120\] to \[4096, 4096\]"):
        EmbeddedProvider(size)


@pytest.mark.parametrize("option", ["command_timeout_s", "boot_timeout_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1"])
def test_time_out_that_is_none_is_refused(option, value):
    with pytest.raises(ConfigError, match=option):
        EmbeddedProvider(**{option: value})


@pytest.fixture
def no_template(monkeypatch):
    """As in a process that has had no desktop yet."""
    monkeypatch.setattr(template, "_templates", weakref.WeakValueDictionary())


def test_missing_program_is_named_with_the_command_that_installs_it(no_template, monkeypatch):
    monkeypatch.setitem(packages.BASE, "xvfb", "no-such-program")
    with pytest.raises(MissingDependencyError, match=r"no-such-program; run: apt-get install .* xvfb"):
        EmbeddedProvider().start_emulator()


def test_missing_python_package_is_named_with_the_command_that_installs_it(no_template, monkeypatch):
    monkeypatch.setitem(guest_process.sandbox.GUEST_MODULES, "no_such_module", "no-such-package")
    with pytest.raises(MissingDependencyError, match="no-such-package; run: pip install"):
        EmbeddedProvider().start_emulator()


def test_sandbox_that_this_machine_refuses_tells_what_to_set(no_template, monkeypatch, tmp_path):
    refusal = tmp_path / "bwrap"
    refusal.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(DesktopBootError, match="kernel.apparmor_restrict_unprivileged_userns=0"):
        EmbeddedProvider().start_emulator()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_users_that_can_no_longer_be_had_are_not_taken_for_root(monkeypatch):
    """A template that gives each desktop a user of the machine is none for desktops in user namespaces."""
    ours, theirs = EmbeddedProvider(), EmbeddedProvider()
    ours.start_emulator()
    try:
        monkeypatch.setattr(users, "available_ids", lambda: None)
        theirs.start_emulator()
        assert attach(theirs).sh("id -un; id -u") == "user\n1000"
        monkeypatch.setattr(template, "template_for", lambda _: ours._guest._template)
        with pytest.raises(DesktopBootError, match="never root"):
            EmbeddedProvider().start_emulator()
    finally:
        ours.stop_emulator()
        theirs.stop_emulator()


def test_address_before_the_start_is_refused():
    with pytest.raises(DesktopBootError, match="call start first"):
        EmbeddedProvider().get_ip_address()


def test_fresh_desktop_shows_a_plain_background_of_the_configured_size():
    provider = EmbeddedProvider((800, 600))
    provider.start_emulator()
    try:
        desktop = attach(provider)
        image = Image.open(io.BytesIO(desktop.controller.get_screenshot()))
        assert image.size == (800, 600) and desktop.controller.get_vm_screen_size() == {"width": 800, "height": 600}
        assert len(image.crop((0, 0, 780, 580)).getcolors()) == 1  # the pointer is in the corner
    finally:
        provider.stop_emulator()


def test_revert_leaves_no_file_process_window_or_shared_memory(desktop):
    sh, controller = desktop.sh, desktop.controller
    # A checkout below /tmp or /home is visible there, for its interpreter's sake.
    places = "ls /home; ls /var/tmp /dev/shm /tmp"
    before, files = controller.get_vm_directory_tree("/home/user"), sh(places)
    sh("mkdir -p ~/a/b ~/locked && touch ~/a/b/c ~/locked/x /tmp/t /var/tmp/t /run/t /dev/shm/t && chmod 0 ~/locked")
    sh("setsid nohup sleep 1234 > /dev/null 2>&1 & ipcmk -M 4096; echo changed > ~/.bashrc")
    desktop.setup._launch_setup(["xterm"])
    eventually(lambda: "xterm" in sh("wmctrl -lx"))

    desktop.provider.revert_to_snapshot()

    assert controller.get_vm_directory_tree("/home/user") == before
    assert sh(places) == files and "user" in files.split() and "t" not in files.split()
    assert "changed" not in sh("cat ~/.bashrc")
    assert sh("pgrep -x sleep; pgrep -x xterm; wmctrl -l; tail -n +2 /proc/sysvipc/shm") == ""


def test_revert_gives_another_fork_of_the_same_template(desktop):
    """Neither a Python nor a bubblewrap is started for it."""
    desktop.controller.get_vm_screen_size()  # so that it is no longer clean
    before, first = desktop.provider._guest._template, desktop.provider._guest._process.pid
    desktop.provider.revert_to_snapshot()
    assert desktop.provider._guest._process.pid != first and desktop.provider._guest._template is before


def test_untouched_desktop_is_not_booted_again_and_ports_stay(desktop):
    provider = desktop.provider
    processes, address = set(sandbox_processes(provider)), provider.get_ip_address()
    provider.revert_to_snapshot()
    provider.start_emulator()
    assert set(sandbox_processes(provider)) == processes
    desktop.controller.get_vm_screen_size()
    provider.start_emulator()
    assert set(sandbox_processes(provider)) != processes
    assert provider.get_ip_address() == address


def test_two_desktops_do_not_meet():
    providers = [EmbeddedProvider(), EmbeddedProvider()]
    for provider in providers:
        provider.start_emulator()
    try:
        first, second = map(attach, providers)
        first.sh("touch ~/only-here")
        first.controller.execute_python_command("pyautogui.moveTo(11, 12)")
        for desktop, word in ((first, "one"), (second, "two")):  # the same port in both
            desktop.setup._launch_setup(["socat", "tcp-listen:9222,fork", f"exec:echo {word}"])
        said = [eventually(lambda d=d: _first_line(d.setup.chromium_port)) for d in (first, second)]
        assert said == [b"one\n", b"two\n"]
        assert second.sh("ls ~/only-here; true") != "/home/user/only-here"
        assert "11, 12" not in second.controller.execute_python_command("print(tuple(pyautogui.position()))")["output"]
    finally:
        for provider in providers:
            provider.stop_emulator()


def _first_line(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        return connection.recv(100)


def test_stop_leaves_no_process_and_no_port():
    provider = EmbeddedProvider()
    provider.start_emulator()
    processes = sandbox_processes(provider)
    ports = [int(port) for port in provider.get_ip_address().split(":")[1:] if port != "0"]
    provider.stop_emulator()
    provider.stop_emulator()
    eventually(lambda: not [pid for pid in processes if os.path.exists(f"/proc/{pid}")])  # the template buries it
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 1)
    provider.start_emulator()  # and it can come back
    assert attach(provider).controller.get_screenshot()
    provider.stop_emulator()


def test_forgotten_provider_ends_its_desktop():
    provider = EmbeddedProvider()
    provider.start_emulator()
    port, processes = int(provider.get_ip_address().split(":")[1]), sandbox_processes(provider)
    del provider
    eventually(lambda: not [pid for pid in processes if os.path.exists(f"/proc/{pid}")])
    eventually(lambda: not _listens(port))


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
