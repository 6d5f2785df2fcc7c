"""Machines that boot: a template, its clones, what they keep apart, and what is left when they end."""

import contextlib
import dataclasses
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import ROOT
from support.desktop_harness import eventually
from support.machines import BOOT_TIMEOUT_S, SCREEN, sandboxes

from arpo_verl.desktops.machine_provider import SERVER_PORT
from arpo_verl.desktops.vm import guest, machine, template
from arpo_verl.desktops.vm.provider import QemuProvider
from arpo_verl.desktops.vm.template import start
from arpo_verl.errors import DesktopBootError
from arpo_verl.lib.images import SENT, image_size
from arpo_verl.lib.relay import HOST

pytestmark = pytest.mark.vm


@pytest.fixture
def clones(config, image, folder):
    """Starts clones, which end with the test."""
    with contextlib.ExitStack() as stack:

        def one():
            made = start(config, image, SCREEN, folder, BOOT_TIMEOUT_S)
            stack.callback(made.close)
            return made

        yield one


def execute(clone, *command):
    """What a command says in the guest, and its status."""
    connection = http.client.HTTPConnection(HOST, clone.ports[SERVER_PORT], timeout=120)
    with contextlib.closing(connection):
        body = json.dumps({"command": list(command), "shell": False})
        connection.request("POST", "/execute", body, {"Content-Type": "application/json"})
        told = json.loads(connection.getresponse().read())
    return told["output"], told["returncode"]


def python(clone, code):
    """What Python in the guest's warm interpreter prints."""
    said, status = execute(clone, "python", "-c", code)
    assert status == 0
    return said.strip()


def test_a_clone_shows_its_desktop_with_a_right_clock(clones):
    clone = clones()
    assert image_size(guest.screenshot(clone), SENT) == SCREEN
    before = time.time()
    told = float(python(clone, "import time; print(time.time())"))
    assert before - 1 < told < time.time() + 1


def test_two_clones_never_draw_the_same(clones):
    draw = "import os, random, uuid; print(os.urandom(16).hex(), random.random(), uuid.uuid4())"
    one, other = (python(clone, draw).split() for clone in (clones(), clones()))
    assert not set(one) & set(other)


def test_a_guest_reaches_neither_host_nor_another_guest_nor_a_name(clones):
    clone, other = clones(), clones()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reached = f"""
import socket
for host, port in (("10.0.2.2", {listener.getsockname()[1]}), ("10.0.2.2", {other.ports[5000]}), ("10.0.2.15", 5000),
                   ("1.1.1.1", 53), ("{host_address()}", 22)):
    try:
        socket.create_connection((host, port), 3).close()
        print("reached", host)
    except OSError:
        pass
try:
    print("resolved", socket.getaddrinfo("deb.debian.org", 80))
except OSError:
    pass
"""
        assert python(clone, reached) == "reached 10.0.2.15"  # its own server
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


def host_address():
    """This host's own, on whatever network it has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return one.getsockname()[0]


def test_what_one_clone_writes_none_other_sees(clones, folder):
    before = {name: template.digest(folder / name) for name in template.FILES}
    one, other = clones(), clones()
    python(one, "open('/home/user/mark', 'wb').write(b'x' * (8 << 20))")
    assert python(other, "import os; print(os.path.exists('/home/user/mark'))") == "False"
    one.close()
    assert {name: template.digest(folder / name) for name in template.FILES} == before


@pytest.mark.parametrize("is_root", [True, False])
def test_qemu_runs_without_any_privilege(clones, monkeypatch, is_root):
    """Where we are root, as somebody else; else, as here without a user to become, in a user namespace."""
    if not is_root:
        monkeypatch.setattr(machine.users, "claim_user", lambda: None)
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{clones().pid}/status").read_text().splitlines())
    assert (fields["NoNewPrivs"].strip(), fields["Seccomp"].strip()) == ("1", "2")
    assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    if is_root and os.geteuid() == 0:
        assert os.geteuid() not in map(int, fields["Uid"].split())


def test_a_program_of_the_guest_cannot_speak_to_the_agent_s_channel(clones):
    said, status = execute(clones(), "sh", "-c", "echo hello > /dev/virtio-ports/org.qemu.guest_agent.0")
    assert status != 0


def test_a_machine_that_its_guest_powers_off_says_so(clones):
    clone = clones()
    assert clone.why_gone() == "" and clone.why_down() is None
    clone.ask("system_powerdown")  # the guest's own services end it, as a user's `poweroff` would
    eventually(lambda: not clone.is_alive(), timeout_s=120)
    assert clone.why_gone() == "its guest ended it: guest-shutdown" and clone.why_down().is_proof


def test_a_machine_that_is_killed_is_not_its_guest_s_doing(clones):
    clone = clones()
    os.kill(clone.pid, signal.SIGKILL)
    eventually(lambda: not clone.is_alive())
    assert clone.why_gone() and clone.why_down() is None


def test_every_reset_is_another_machine_and_the_last_one_is_gone(config, image, folder):
    before, kept = sandboxes(), sorted(folder.iterdir())
    provider = QemuProvider(config, str(image.disk), SCREEN, BOOT_TIMEOUT_S)
    provider.start_emulator()
    first = provider.get_ip_address()
    python(provider._machine, "open('/home/user/mark', 'w').close()")
    provider.revert_to_snapshot()
    assert provider.get_ip_address() != first
    assert python(provider._machine, "import os; print(os.path.exists('/home/user/mark'))") == "False"
    provider.stop_emulator()
    provider.stop_emulator()
    with pytest.raises(DesktopBootError, match="call start first"):
        provider.get_ip_address()
    eventually(lambda: sandboxes() <= before)
    assert sorted(folder.iterdir()) == kept
    assert list((config.path / "writable").iterdir()) == []


OWNER = """
import sys, time
sys.path[:0] = ["tests"]
from arpo_verl.types import Size
from arpo_verl.desktops.config import VmConfig
from arpo_verl.desktops.vm.provider import QemuProvider
provider = QemuProvider(VmConfig(**eval(sys.argv[1])), sys.argv[2], Size(640, 480), 600)
provider.start_emulator()
print(provider._machine._process.pid, flush=True)
time.sleep(600)
"""


def test_an_owner_that_is_killed_leaves_nothing(config, image, folder):
    before = sandboxes()
    command = [sys.executable, "-c", OWNER, repr(dataclasses.asdict(config)), str(image.disk)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as owner:
        assert int(owner.stdout.readline()) in sandboxes() - before
        owner.kill()
    eventually(lambda: sandboxes() <= before)
    assert list((config.path / "writable").iterdir()) == []
    assert template.why_unfit(config, image, SCREEN, folder) == ""


def test_a_template_that_broke_on_its_disk_is_made_again(config, image, folder, tmp_path):
    """Its clone does not start; the next one finds out why."""
    broken = dataclasses.replace(config, folder=str(tmp_path))
    theirs = template.folder_of(broken, image, SCREEN)
    theirs.parent.mkdir()
    subprocess.run(["cp", "--archive", "--sparse=always", folder, theirs], check=True)
    provider = QemuProvider(broken, str(image.disk), SCREEN, BOOT_TIMEOUT_S)
    provider.start_emulator()
    provider.stop_emulator()
    state = theirs / "state"
    status = state.stat()
    state.chmod(0o644)
    content = bytearray(state.read_bytes())
    content[100:-100] = bytes(len(content) - 200)
    state.write_bytes(content)
    os.utime(state, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(DesktopBootError):
        provider.start_emulator()
    assert template.why_unfit(broken, image, SCREEN, theirs) == "its file state is corrupt"
    provider.start_emulator()
    assert provider.why_gone() == ""
    provider.stop_emulator()
    assert template.why_unfit(broken, image, SCREEN, theirs) == ""


def test_eight_clones_live_together(clones):
    eight = [clones() for _ in range(8)]
    assert all(guest.screenshot(clone, 60) for clone in eight)
    assert len({clone.ports[5000] for clone in eight}) == 8


def test_without_a_template_a_machine_boots_cold(config, image):
    cold = dataclasses.replace(config, template=False)
    provider = QemuProvider(cold, str(image.disk), SCREEN, BOOT_TIMEOUT_S)
    provider.start_emulator()
    assert image_size(guest.screenshot(provider._machine), SENT) == SCREEN
    provider.stop_emulator()


@contextlib.contextmanager
def ended_by(config, image, folder, code):
    """A clone in which Python ran `code` as root, once it is gone."""
    clone = machine.VirtualMachine(config, image, SCREEN, machine.clone(config, image, folder))
    with contextlib.closing(clone):
        clone.migrate("migrate-incoming", "/template/state", BOOT_TIMEOUT_S)
        clone.ask("cont")
        with contextlib.suppress(Exception):  # the agent's, whose machine ends
            machine.run_async(guest._execute(clone, ["-c", code]), BOOT_TIMEOUT_S)
        eventually(lambda: not clone.is_alive())
        yield clone


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 64 MiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=1777", "small", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_of_the_host_ends_a_machine_and_is_not_its_guest_s_doing(config, image, folder, small_disk):
    small = dataclasses.replace(config, folder=str(small_disk / "vm"))
    write = "import os; file = open('/root/a', 'wb', 0); file.write(bytes(96 << 20)); os.fsync(file)"
    with ended_by(small, image, folder, write) as clone:
        assert clone.why_gone() == "a disk of this host failed: No space left on device"
        assert clone.why_down() is None
    assert list((small_disk / "vm" / "writable").iterdir()) == []
    assert template.why_unfit(config, image, SCREEN, folder) == ""


def test_a_guest_that_writes_too_much_ended_its_machine_itself(config, image, folder):
    small = dataclasses.replace(config, disk_mib=256)
    write = (
        "import os; file = open('/root/a', 'wb', 0); [file.write(b'x' * (8 << 20)) for _ in range(40)]; os.fsync(file)"
    )
    with ended_by(small, image, folder, write) as clone:
        assert clone.why_down().is_proof and "disk_mib" in clone.why_gone()
