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

from arpo_verl.desktops.vm import machine
from arpo_verl.desktops.vm.config import VmConfig, own_folder
from arpo_verl.desktops.vm.image import Image
from arpo_verl.errors import ConfigError, DesktopBootError, MissingDependencyError
from arpo_verl.types import Size

SCREEN = Size(640, 480)


@pytest.fixture
def image(tmp_path):
    names = ("disk.qcow2", "vmlinuz", "initrd.img")
    for name in names:
        (tmp_path / name).write_bytes(b"")
    return Image(*(tmp_path / name for name in names))


def words_of(start):
    return " ".join(start.words)


def test_a_clone_can_write_to_nothing_of_its_template(image, tmp_path):
    start = machine.clone(VmConfig(), image, tmp_path)
    assert not start.writable
    assert "share=off,readonly=on,rom=off" in words_of(start)
    assert "snapshot=on,file=/template/disk" in words_of(start)
    assert start.words[-2:] == ("-incoming", "defer")


def test_a_template_shares_its_memory_and_writes_nothing_of_the_image(image, tmp_path):
    start = machine.for_template(VmConfig(), image, tmp_path)
    assert "mem-path=/template/memory,share=on" in words_of(start)
    assert start.writable == {"/template": tmp_path}
    assert image.disk not in start.writable.values()


def test_another_s_image_boots_by_uefi_whose_variables_are_each_machine_s_own(image, tmp_path):
    theirs = Image(image.disk)
    assert "unit=1,format=raw,snapshot=on,file=/template/variables" in words_of(
        machine.clone(VmConfig(), theirs, tmp_path)
    )
    words = machine.hardware(VmConfig(), theirs, SCREEN)
    assert "-kernel" not in words and "virtio-vga,edid=on,xres=640,yres=480" in words


def test_the_guest_reaches_nothing_and_is_reached_from_this_host_s_loopback_alone(image):
    words = machine.hardware(VmConfig(), image, SCREEN)
    network = words[words.index("-netdev") + 1].split(",")
    assert "restrict=on" in network
    assert [word for word in network if word.startswith("hostfwd")] == [
        f"hostfwd=tcp:127.0.0.1:0-:{port}" for port in (5000, 9222, 8080)
    ]
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
from arpo_verl.desktops.vm.config import VmConfig
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


def test_a_qemu_that_is_not_installed_is_named():
    with pytest.raises(
        MissingDependencyError, match="environment.vm.binary=no-such-qemu is not installed; run: apt-get"
    ):
        machine.which(VmConfig(binary="no-such-qemu"))


def test_a_program_that_is_no_qemu_is_told(tmp_path):
    other, broken = tmp_path / "other", tmp_path / "broken"
    other.write_text("#!/bin/sh\necho some program 1.0\n")
    broken.write_text("#!/bin/sh\necho no libfdt.so.1 >&2\nexit 127\n")
    for program, said in ((other, "some program 1.0"), (broken, "no libfdt.so.1")):
        program.chmod(0o755)
        with pytest.raises(ConfigError, match=rf"environment.vm.binary must be QEMU, got .*, .*--version: '{said}'"):
            machine.version(program)


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
