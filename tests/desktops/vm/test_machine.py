"""QEMU's words, and its sandbox, without a machine."""

import os
import shutil
import subprocess
import sys
import types

import pytest
from support import ROOT
from support.desktop_harness import eventually
from support.machines import sandboxes

from arpo_verl.desktops.config import VmConfig
from arpo_verl.desktops.vm import machine
from arpo_verl.desktops.vm.image import Image
from arpo_verl.desktops.vm.machine import own_folder
from arpo_verl.errors import ArpoError, ConfigError, DesktopBootError, MissingDependencyError
from arpo_verl.types import Size

SCREEN = Size(640, 480)


@pytest.fixture
def image(tmp_path):
    files = [tmp_path / name for name in ("disk.qcow2", "vmlinuz", "initrd.img")]
    for file in files:
        file.touch()
    return Image(*files)


def test_what_each_kind_of_start_may_write_to(image, tmp_path):
    theirs = Image(image.disk)  # it boots by UEFI, whose variables are each machine's own
    cold, made, clone, other = (
        machine.cold(VmConfig(), image),
        machine.for_template(VmConfig(), image, tmp_path),
        machine.clone(VmConfig(), image, tmp_path),
        machine.clone(VmConfig(), theirs, tmp_path),
    )
    assert made.writable == {"/template": tmp_path} and not cold.writable and not clone.writable and not other.writable
    for start, said in (
        (cold, "snapshot=on,file=/image"),
        (made, "mem-path=/template/memory,share=on"),
        (clone, "share=off,readonly=on,rom=off"),
        (clone, "snapshot=on,file=/template/disk"),
        (clone, "-incoming defer"),
        (other, "unit=1,format=raw,snapshot=on,file=/template/variables"),
    ):
        assert said in " ".join(start.words)
    words = machine.hardware(VmConfig(), theirs, SCREEN)
    assert "-kernel" not in words and "virtio-vga,edid=on,xres=640,yres=480" in words


def test_the_guest_reaches_nothing_and_is_reached_from_this_host_s_loopback_alone(image):
    words = machine.hardware(VmConfig(), image, SCREEN)
    network = words[words.index("-netdev") + 1].split(",")
    ways = [word for word in network if word.startswith("hostfwd")]
    assert "restrict=on" in network and ways == [f"hostfwd=tcp:127.0.0.1:0-:{port}" for port in (5000, 9222, 8080)]
    assert "balloon" not in " ".join(words), "which would punch holes into its template"


def test_qemu_sees_the_template_read_only_and_filters_its_system_calls(image, tmp_path):
    config = VmConfig(binary="true", folder=str(tmp_path / "vm"), accelerator="tcg")
    start = machine.clone(config, image, tmp_path)
    command = machine._command(config, start, ["-words"], [], None, tmp_path, 9)
    assert command[command.index("--seccomp") + 1] == "9"
    place = command.index("/template")
    assert command[place - 2 : place] == ["--ro-bind", str(tmp_path)]
    assert "--die-with-parent" in command and "--unshare-pid" in command
    assert command[-2:] == ["-sandbox", machine.FILTERS]


def test_kvm_that_a_user_of_its_own_cannot_open_is_told(image, tmp_path, monkeypatch):
    kvm, user = tmp_path / "kvm", types.SimpleNamespace(user_id=os.geteuid())
    monkeypatch.setattr(machine, "KVM", kvm)
    config = VmConfig(binary="true", folder=str(tmp_path / "vm"))
    start = machine.cold(config, image)
    with pytest.raises(MissingDependencyError, match="no .*kvm here; environment.vm.accelerator=tcg"):
        machine._command(config, start, [], [], user, tmp_path)
    kvm.touch(0o600)
    with pytest.raises(ConfigError, match="kvm must be open to its group, got mode 600: .*; run: chgrp kvm .*chmod g"):
        machine._command(config, start, [], [], user, tmp_path)
    for mode in (0o660, 0o666):
        kvm.chmod(mode)
        assert str(kvm) in machine._command(config, start, [], [], user, tmp_path)
    kvm.chmod(0o600)
    assert str(kvm) in machine._command(config, start, [], [], None, tmp_path)


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_qemu_that_does_not_start_says_why_and_leaves_nothing(image, tmp_path):
    pytest.importorskip("qemu.qmp")
    config = VmConfig(binary="ls", folder=str(tmp_path / "vm"), accelerator="tcg")
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(DesktopBootError, match="QEMU does not start: .*ls: "):
        machine.VirtualMachine(config, image, SCREEN, machine.cold(config, image))
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 6  # of the event loop, made once
    assert list((tmp_path / "vm" / "writable").iterdir()) == []


OWNER = """
import sys
from pathlib import Path
from arpo_verl.types import Size
from arpo_verl.desktops.vm import machine
from arpo_verl.desktops.config import VmConfig
from arpo_verl.desktops.vm.image import Image
binary, folder, *files = sys.argv[1:]
config = VmConfig(binary=binary, folder=folder, accelerator="tcg")
image = Image(*map(Path, files))
machine.VirtualMachine(config, image, Size(640, 480), machine.cold(config, image))
"""


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_an_owner_that_is_killed_while_a_sandbox_is_made_leaves_none(image, tmp_path, monkeypatch):
    pytest.importorskip("qemu.qmp")
    qemu, slow, reached = (tmp_path / name for name in ("mine/bin/qemu", "slow/bwrap", "reached"))
    for folder in (qemu.parent, slow.parent, tmp_path / "mine" / "share" / "qemu"):
        folder.mkdir(parents=True)
    qemu.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.write_text(f'#!/bin/sh\ntouch {reached}\nsleep 0.5\nexec {shutil.which("bwrap")} "$@"\n')
    qemu.chmod(0o755)
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    command = [sys.executable, "-c", OWNER, qemu, tmp_path / "vm", image.disk, image.kernel, image.initrd]
    with subprocess.Popen(command, cwd=ROOT) as owner:
        eventually(reached.exists)
        owner.kill()
    eventually(lambda: not sandboxes(tmp_path / "vm"))  # bubblewrap's stand-in is one too, as long as it runs


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("echo some program 1.0", r"must be QEMU, got .*, .*--version: 'some program 1\.0'"),
        ("echo no libfdt.so.1 >&2; exit 127", r"must be QEMU, got .*, .*--version: 'no libfdt\.so\.1'"),
        (None, "binary=.*/qemu is not installed; run: apt-get"),
    ],
)
def test_a_program_that_is_no_qemu_is_told(tmp_path, line, message):
    if line is not None:
        (tmp_path / "qemu").write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "qemu").chmod(0o755)
    with pytest.raises(ArpoError, match=f"environment.vm.{message}|environment.vm.binary {message}"):
        machine.version(machine.which(VmConfig(binary=str(tmp_path / "qemu"))))


def test_ports_are_read_off_what_qemu_says():
    said = (
        "Hub 0 (net):\r\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n"
        "  TCP[HOST_FORWARD]  13       127.0.0.1 41235       10.0.2.15  8080     0     0\r\n"
        "  TCP[HOST_FORWARD]  12       127.0.0.1 40001       10.0.2.15  5000     0     0\r\n"
        "  TCP[ESTABLISHED]   14       127.0.0.1 40001       10.0.2.15  5000     0     0\r\n"
    )
    assert machine._FORWARD.findall(said) == [("41235", "8080"), ("40001", "5000")]


def test_of_a_qemu_of_one_s_own_only_its_installation_is_seen(image, tmp_path):
    binary = tmp_path / "mine" / "bin" / "qemu"
    for folder in (binary.parent, tmp_path / "mine" / "share" / "qemu", tmp_path / "mine" / "secrets"):
        folder.mkdir(parents=True)
    binary.write_text("")
    words = machine._installation(binary)
    assert [words[at + 1 :][:2] for at, word in enumerate(words) if word == "--ro-bind"] == [
        [str(binary.parent), "/qemu/bin"],
        [str(tmp_path / "mine" / "share" / "qemu"), "/qemu/share/qemu"],
    ]
    with pytest.raises(ConfigError, match="environment.vm.binary must be PREFIX/bin/... of an installed QEMU, got"):
        machine._installation(tmp_path / "build" / "qemu")


def test_what_can_be_no_folder_of_ones_own_is_refused(tmp_path):
    assert own_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "a" / "b").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "a" / "b", tmp_path / "link"):
        with pytest.raises(ConfigError, match="must be a folder that belongs to this process's user"):
            own_folder(path)
    for path in (tmp_path / "file", tmp_path / "file" / "vm"):
        with pytest.raises(ConfigError, match=r"vm.folder: cannot make the folder .*file.* \(.*\); name another"):
            own_folder(path)
