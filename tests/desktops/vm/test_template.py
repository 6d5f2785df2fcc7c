"""A template that does not fit, or is not whole, is refused and made again. Without a machine."""

import dataclasses
import errno
import os
import pkgutil
import stat
import types
from itertools import count
from pathlib import Path

import pytest
from filelock import FileLock

from arpo_verl.desktops.config import EnvironmentConfig, VmConfig
from arpo_verl.desktops.providers import OUR_MACHINES
from arpo_verl.desktops.vm import template
from arpo_verl.desktops.vm.image import Image
from arpo_verl.desktops.vm.provider import QemuProvider
from arpo_verl.errors import ArpoError, ConfigError, DesktopBootError, MissingDependencyError
from arpo_verl.types import Size

SCREEN = Size(640, 480)


def write_qemu(path, version):
    """A program that only says its version, as QEMU does."""
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "QEMU emulator version {version} (Debian 1:{version})"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def config(tmp_path):
    return VmConfig(binary=write_qemu(tmp_path / "qemu", "9.1.0"), folder=str(tmp_path / "vm"), accelerator="tcg")


@pytest.fixture
def image(tmp_path):
    for name in ("disk.qcow2", "vmlinuz", "initrd.img"):
        (tmp_path / name).write_bytes(b"QFI\xfb" + bytes(12))
    (tmp_path / "image.json").write_text("{}")
    return Image.at(tmp_path / "disk.qcow2")


@pytest.fixture
def folder(config, image):
    """A template's files, sealed as those of a machine that booted."""
    folder = template.folder_of(config, image, SCREEN)
    folder.mkdir(parents=True)
    for name in template.FILES:
        (folder / name).write_bytes(name.encode() * 1000)
    template.seal(config, image, SCREEN, folder, agent=True)
    return folder


def test_a_recipe_names_the_machines_by_the_provider_s_name(config, image):
    path = str(image.disk.with_name("{index}.qcow2"))
    image.disk.rename(image.disk.with_name("7.qcow2"))
    section = EnvironmentConfig(provider="qemu", path_to_vm=path, vm=dataclasses.asdict(config))
    provider = pkgutil.resolve_name(OUR_MACHINES["qemu"])(section, "desktop-7.0")
    assert isinstance(provider, QemuProvider) and provider.why_gone() == "it was stopped"


def test_one_that_was_sealed_fits_and_is_read_only(config, image, folder):
    assert template.ensure(config, image, SCREEN, 1.0) == folder
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in template.FILES} == {0o444}


def rot(path):
    """Another byte under the same size and time, as a broken disk has it."""
    before, content = path.stat(), path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + b"X")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rewrite(path):
    path.chmod(0o644)
    path.write_bytes(b"")


@pytest.mark.parametrize("name", template.FILES)
def test_a_file_that_changed_is_found(config, image, folder, name):
    for change, is_read, reason in ((rot, True, "corrupt"), (rewrite, False, "changed"), (os.unlink, False, "changed")):
        change(folder / name)
        assert template.why_unfit(config, image, SCREEN, folder, read_files=is_read).startswith(f"its file {name} ")
        assert template.why_unfit(config, image, SCREEN, folder, read_files=is_read).endswith(reason)


def test_a_file_that_the_disk_cannot_read_makes_it_unfit(config, image, folder, monkeypatch):
    def fail(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(template, "digest", fail)
    assert "its file memory cannot be read: [Errno 5]" in template.why_unfit(config, image, SCREEN, folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"made_of": {}, "files": {}}', '{"made_of": [], "files": 1}'])
def test_a_manifest_that_says_nothing_makes_none(config, image, folder, text):
    (folder / template.MANIFEST).write_text(text)
    assert template.why_unfit(config, image, SCREEN, folder)


def test_another_qemu_and_another_image_are_told(config, image, folder, tmp_path):
    newer = dataclasses.replace(config, binary=write_qemu(tmp_path / "newer", "10.0.2"))
    assert template.why_unfit(newer, image, SCREEN, folder) == "it was made with another QEMU"
    image.disk.write_bytes(image.disk.read_bytes() + b"more")
    assert template.why_unfit(config, image, SCREEN, folder) == "it was made with another image"


def test_machines_of_another_shape_have_a_template_of_their_own(config, image):
    shapes = ((config, SCREEN), (dataclasses.replace(config, memory_mib=2048), SCREEN), (config, Size(800, 600)))
    folders = {template.folder_of(one, image, screen) for one, screen in shapes}
    assert len(folders) == 3
    assert {template.why_unfit(config, image, SCREEN, folder) for folder in folders} == {"there is none yet"}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"binary": "7.2.22"}, ConfigError, r"need QEMU 8\.2 or newer, but .*/old is 7\.2\.22; .*vm\.template=false"),
        ({"memory_mib": 1 << 30}, DesktopBootError, r"has \d+ MiB free, but a template may take 1073742848"),
        ({"template": False, "disk_mib": 1 << 40}, DesktopBootError, r"MiB free, but a machine may write \d+ MiB"),
    ],
    ids=["an old QEMU", "no room for a template", "no room for a machine"],
)
def test_where_no_machine_can_start_the_reason_is_told(config, image, tmp_path, changes, error, message):
    if "binary" in changes:
        changes = {"binary": write_qemu(tmp_path / "old", changes["binary"])}
    with pytest.raises(error, match=message):
        QemuProvider(dataclasses.replace(config, **changes), str(image.disk), SCREEN).start_emulator()


def test_firmware_that_is_not_installed_is_named_before_anything_is_made(config, image, monkeypatch):
    monkeypatch.setattr("arpo_verl.desktops.vm.image.FIRMWARE", (Path("/no/CODE.fd"), Path("/no/VARS.fd")))
    theirs = dataclasses.replace(image, kernel=None, initrd=None)
    with pytest.raises(MissingDependencyError, match="no /no/CODE.fd, /no/VARS.fd; .* apt-get install -y ovmf"):
        template.ensure(config, theirs, SCREEN, 1.0)


@pytest.fixture
def being_made(config, image):
    """Another process makes the template."""
    folder = template.folder_of(config, image, SCREEN)
    folder.parent.mkdir(parents=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        yield


def test_only_one_process_makes_a_template(config, image, being_made, monkeypatch):
    monkeypatch.setattr(template, "LOCK_TIMEOUT_S", 0.05)
    with pytest.raises(DesktopBootError, match=r"another process has been making .* for 0\.05 s"):
        template.ensure(config, image, SCREEN, 1.0)


def test_a_stop_ends_the_wait_for_another_process_s_template(config, image, being_made, monkeypatch):
    provider, ensure = QemuProvider(config, str(image.disk), SCREEN), template.ensure

    def stopped_meanwhile(*arguments, is_stopped, **more):
        asked = count()

        def stopped_after_the_first_time():
            if next(asked) == 1:
                provider.stop_emulator()
            return is_stopped()

        return ensure(*arguments, is_stopped=stopped_after_the_first_time, **more)

    monkeypatch.setattr(template, "ensure", stopped_meanwhile)
    with pytest.raises(DesktopBootError, match="was stopped while it waited for a template"):
        provider.start_emulator()


class OldLock(FileLock):
    """That of a filelock of last year, which knows no `cancel_check`."""

    def acquire(self, timeout=None, poll_interval=0.05):
        return super().acquire(timeout, poll_interval)


def test_one_that_cannot_be_made_leaves_nothing_of_it_or_of_one_that_was_killed(config, image, monkeypatch):
    pytest.importorskip("qemu.qmp")
    monkeypatch.setattr(template, "FileLock", OldLock)
    folder = template.folder_of(config, image, SCREEN)
    killed = folder.with_name(f".{folder.name}.killed")
    killed.mkdir(parents=True)
    (killed / "memory").write_bytes(b"half")
    with pytest.raises(ArpoError):
        template.ensure(config, image, SCREEN, 1.0)
    assert [path.name for path in folder.parent.iterdir()] == [f".{folder.name}.lock"]


@pytest.mark.parametrize("lives", [True, False], ids=["cannot be saved", "is killed meanwhile"])
def test_a_machine_that_is_not_saved_is_no_template(config, image, lives, monkeypatch):
    """One that is killed while it is saved is no reason against another."""

    def migrate(*words):
        raise DesktopBootError("QEMU's migrate failed: State blocked by non-migratable device")

    machine = types.SimpleNamespace(ask=print, close=lambda: None, is_alive=lambda: lives, migrate=migrate)
    monkeypatch.setattr(template, "VirtualMachine", lambda *_: machine)
    monkeypatch.setattr(template, "_make_disk", lambda image, folder: (folder / "disk").touch())
    monkeypatch.setattr(template, "await_settled", lambda machine: None)
    for name in ("await_desktop", "has_agent"):
        monkeypatch.setattr(template.guest, name, lambda *words: True)
    reason = r"cannot be saved .*non-migratable.*template=false" if lives else "QEMU's migrate failed"
    with pytest.raises(ConfigError if lives else DesktopBootError, match=reason):
        template.ensure(config, image, SCREEN, 1.0)
    assert not template.folder_of(config, image, SCREEN).exists()


@pytest.mark.parametrize("name", ["memory", "more"])
def test_what_a_broken_qemu_left_in_its_folder_is_not_followed(config, image, folder, tmp_path, name):
    secret = tmp_path / "secret"
    secret.write_text("ours")
    secret.chmod(0o600)
    (folder / template.MANIFEST).unlink()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    with pytest.raises(DesktopBootError, match="left other files than a template's"):
        template.seal(config, image, SCREEN, folder, agent=True)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_stop_ends_a_machine_that_starts(config, image, monkeypatch):
    provider = QemuProvider(dataclasses.replace(config, template=False), str(image.disk), SCREEN)
    machine = types.SimpleNamespace(close=lambda: closed.append(1))
    closed = []

    def start(*arguments):
        arguments[-1](machine)
        provider.stop_emulator()
        raise DesktopBootError("it ended")

    monkeypatch.setattr(template, "start", start)
    with pytest.raises(DesktopBootError):
        provider.start_emulator()
    assert closed and provider.why_gone() == "it was stopped"


def test_a_clone_that_does_not_start_has_its_template_read_again(config, image, folder, monkeypatch):
    provider = QemuProvider(config, str(image.disk), SCREEN)

    def start(*arguments):
        raise DesktopBootError("it ended")

    monkeypatch.setattr(template, "start", start)
    for _ in range(2):
        with pytest.raises(DesktopBootError, match="it ended"):
            provider.start_emulator()
    read = []
    monkeypatch.setattr(template, "digest", lambda path: read.append(path.name))
    with pytest.raises(ArpoError):
        provider.start_emulator()
    assert read == ["memory", "memory"]
