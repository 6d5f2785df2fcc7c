"""A template that does not fit, or is not whole, is refused and made again. Without a machine."""

import dataclasses
import errno
import os
import stat
import types
from itertools import count
from pathlib import Path

import pytest
from filelock import FileLock

from arpo_verl.desktops.vm import boot, template
from arpo_verl.desktops.vm.config import VmConfig
from arpo_verl.desktops.vm.image import Image
from arpo_verl.desktops.vm.provider import QemuProvider
from arpo_verl.errors import ArpoError, DesktopBootError, MissingDependencyError
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
    names = ("disk.qcow2", "vmlinuz", "initrd.img")
    for name in names:
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


def rewrite(path, content):
    """Other bytes under the same size and time, as a broken disk has them."""
    before = path.stat()
    path.chmod(0o644)
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_one_that_was_sealed_fits_and_is_read_only(config, image, folder):
    assert template.why_unfit(config, image, SCREEN, folder, read_image=True) == ""
    assert template.ensure(config, image, SCREEN, 1.0) == folder
    assert boot.has_agent(folder)
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in template.FILES} == {0o444}


@pytest.mark.parametrize("name", template.FILES)
def test_a_byte_that_changed_is_found(config, image, folder, name):
    content = (folder / name).read_bytes()
    rewrite(folder / name, content[:-1] + b"X")
    assert template.why_unfit(config, image, SCREEN, folder) == f"its file {name} is corrupt"


def test_a_file_that_the_disk_cannot_read_makes_it_unfit(config, image, folder, monkeypatch):
    def fail(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(template, "digest", fail)
    assert "its file memory cannot be read: [Errno 5]" in template.why_unfit(config, image, SCREEN, folder)


def test_a_file_that_was_written_to_or_is_gone_is_found_without_reading_it(config, image, folder):
    (folder / "memory").chmod(0o644)
    (folder / "memory").write_bytes(b"")
    assert template.why_unfit(config, image, SCREEN, folder, read_files=False) == "its file memory was changed"
    (folder / "memory").unlink()
    assert template.why_unfit(config, image, SCREEN, folder, read_files=False) == "its file memory was changed"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"made_of": {}, "files": {}}', '{"made_of": [], "files": 1}'])
def test_a_manifest_that_says_nothing_makes_none(config, image, folder, text):
    (folder / boot.MANIFEST).write_text(text)
    assert template.why_unfit(config, image, SCREEN, folder)


def test_another_qemu_and_another_image_are_told(config, image, folder, tmp_path):
    newer = VmConfig(binary=write_qemu(tmp_path / "newer", "10.0.2"), folder=config.folder, accelerator="tcg")
    assert template.why_unfit(newer, image, SCREEN, folder) == "it was made with another QEMU"
    image.disk.write_bytes(image.disk.read_bytes() + b"more")
    assert template.why_unfit(config, image, SCREEN, folder) == "it was made with another image"


def test_an_image_that_changed_under_the_same_time_is_found_where_it_is_read(config, image, folder):
    rewrite(image.disk, image.disk.read_bytes()[:-1] + b"X")
    assert template.why_unfit(config, image, SCREEN, folder) == ""
    assert template.why_unfit(config, image, SCREEN, folder, read_image=True) == "the image was changed"


def test_machines_of_another_shape_have_a_template_of_their_own(config, image):
    other = VmConfig(binary=config.binary, folder=config.folder, accelerator="tcg", memory_mib=2048)
    folders = {
        template.folder_of(config, image, SCREEN),
        template.folder_of(other, image, SCREEN),
        template.folder_of(config, image, Size(800, 600)),
    }
    assert len(folders) == 3
    assert {template.why_unfit(config, image, SCREEN, folder) for folder in folders} == {"there is none yet"}


def test_an_old_qemu_makes_every_reset_a_cold_boot_and_says_so(image, tmp_path, caplog):
    old = VmConfig(binary=write_qemu(tmp_path / "old", "7.2.22"), folder=str(tmp_path / "vm"))
    with pytest.raises(
        template.TemplateError, match=r"templates need QEMU 8\.2 or newer, but .*/old is 7\.2\.22; name"
    ):
        template.ensure(old, image, SCREEN, 1.0)
    assert QemuProvider(old, str(image.disk), SCREEN)._template() is None
    assert "every desktop and every reset boots cold, which takes minutes: templates need" in caplog.text


def test_only_one_process_makes_a_template(config, image, monkeypatch):
    monkeypatch.setattr(template, "LOCK_TIMEOUT_S", 0.05)
    folder = template.folder_of(config, image, SCREEN)
    folder.parent.mkdir(parents=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        with pytest.raises(template.TemplateError, match=r"another process has been making .* for 0\.05 s"):
            template.ensure(config, image, SCREEN, 1.0)


def test_a_filelock_of_last_year_will_do(tmp_path, monkeypatch):
    class Lock(FileLock):
        def acquire(self, timeout=None, poll_interval=0.05):
            return super().acquire(timeout, poll_interval)

    monkeypatch.setattr(template, "FileLock", Lock)
    with template._alone(tmp_path / "one", lambda: False) as lock:
        with pytest.raises(template.TemplateError), template._alone(tmp_path / "one", lambda: True):
            pass
    with template._alone(tmp_path / "one", lambda: True) as again:
        assert again == lock


def test_one_that_cannot_be_made_leaves_nothing_of_it_or_of_one_that_was_killed(config, image):
    pytest.importorskip("qemu.qmp")
    folder = template.folder_of(config, image, SCREEN)
    killed = folder.with_name(f".{folder.name}.killed")
    killed.mkdir(parents=True)
    (killed / "memory").write_bytes(b"half")
    with pytest.raises(ArpoError):
        template.ensure(config, image, SCREEN, 1.0)
    assert [path.name for path in folder.parent.iterdir()] == [f".{folder.name}.lock"]


def test_firmware_that_is_not_installed_is_named_before_anything_is_made(config, image, monkeypatch):
    monkeypatch.setattr("arpo_verl.desktops.vm.image.FIRMWARE", (Path("/no/CODE.fd"), Path("/no/VARS.fd")))
    theirs = dataclasses.replace(image, kernel=None, initrd=None)
    with pytest.raises(MissingDependencyError, match="no /no/CODE.fd, /no/VARS.fd; .* apt-get install -y ovmf"):
        template.ensure(config, theirs, SCREEN, 1.0)


def test_a_template_is_not_begun_where_the_disk_is_too_full(config, image):
    huge = VmConfig(binary=config.binary, folder=config.folder, accelerator="tcg", memory_mib=1 << 30)
    with pytest.raises(template.TemplateError, match=r"has \d+ MiB free, but a template may take 1073742848"):
        template.ensure(huge, image, SCREEN, 1.0)


def test_one_whose_clones_do_not_start_is_not_made_again(config, image, folder, caplog):
    template.refuse(config, image, SCREEN, folder, "no clone of it started (nobody sets its clock)")
    with pytest.raises(template.TemplateError, match=r"no clone of it started \(nobody sets its clock\); to try again"):
        template.ensure(config, image, SCREEN, 1.0)
    assert [path.name for path in folder.iterdir()] == [boot.MANIFEST]
    assert QemuProvider(config, str(image.disk), SCREEN)._template() is None
    assert "every desktop and every reset boots cold" in caplog.text


class Unsaveable:
    """A machine that boots, and cannot be saved; or is killed meanwhile."""

    made = 0
    lives = True

    def __init__(self, *arguments):
        Unsaveable.made += 1

    def ask(self, *words): ...
    def close(self): ...

    def is_alive(self):
        return self.lives

    def migrate(self, *words):
        raise DesktopBootError("QEMU's migrate failed: State blocked by non-migratable device")


@pytest.fixture
def unsaveable(monkeypatch):
    monkeypatch.setattr(Unsaveable, "made", 0)
    monkeypatch.setattr(template, "VirtualMachine", Unsaveable)
    monkeypatch.setattr(template, "_make_disk", lambda image, folder: (folder / "disk").touch())
    monkeypatch.setattr(template, "await_settled", lambda machine: None)
    for name in ("await_desktop", "has_agent"):
        monkeypatch.setattr(template.guest, name, lambda *words: True)
    return Unsaveable


def test_a_machine_that_cannot_be_saved_is_booted_for_a_template_once(config, image, unsaveable):
    for _ in range(3):
        with pytest.raises(template.TemplateError, match="this machine cannot be saved .*non-migratable") as caught:
            template.ensure(config, image, SCREEN, 1.0)
    folder = template.folder_of(config, image, SCREEN)
    assert str(caught.value).endswith(f"to try again, remove {folder}")
    assert unsaveable.made == 1
    assert [path.name for path in folder.iterdir()] == [boot.MANIFEST]


def test_a_machine_that_is_killed_while_it_is_saved_is_no_reason_against_another(
    config, image, unsaveable, monkeypatch
):
    monkeypatch.setattr(unsaveable, "lives", False)
    with pytest.raises(DesktopBootError, match="QEMU's migrate failed"):
        template.ensure(config, image, SCREEN, 1.0)
    assert not template.folder_of(config, image, SCREEN).exists()


def test_one_that_is_whole_is_given_up_after_clones_in_a_row_that_do_not_start(config, image, folder):
    template.doubt(folder)
    template.trust(folder)
    template.doubt(folder)
    assert template.ensure(config, image, SCREEN, 1.0) == folder
    template.doubt(folder)
    with pytest.raises(template.TemplateError, match="2 clones in a row did not start from .*, though"):
        template.ensure(config, image, SCREEN, 1.0)


@pytest.mark.parametrize("name", ["memory", "more"])
def test_what_a_broken_qemu_left_in_its_folder_is_not_followed(config, image, folder, tmp_path, name):
    secret = tmp_path / "secret"
    secret.write_text("ours")
    secret.chmod(0o600)
    (folder / boot.MANIFEST).unlink()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    with pytest.raises(template.TemplateError, match="left other files than a template's"):
        template.seal(config, image, SCREEN, folder, agent=True)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_stop_ends_the_wait_for_another_process_s_template(config, image, monkeypatch):
    folder = template.folder_of(config, image, SCREEN)
    folder.parent.mkdir(parents=True)
    provider = QemuProvider(config, str(image.disk), SCREEN)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        ensure = template.ensure

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


def test_a_stop_ends_a_machine_that_starts(config, image, monkeypatch):
    provider = QemuProvider(dataclasses.replace(config, template=False), str(image.disk), SCREEN)
    machine = types.SimpleNamespace(close=lambda: closed.append(1))
    closed = []

    def start(*arguments):
        arguments[-1](machine)
        provider.stop_emulator()
        raise DesktopBootError("it ended")

    monkeypatch.setattr("arpo_verl.desktops.vm.provider.start", start)
    with pytest.raises(DesktopBootError):
        provider.start_emulator()
    assert closed and provider.why_gone() == "it was stopped"


def test_a_host_whose_disk_is_too_full_starts_no_machine(config, image):
    full = dataclasses.replace(config, template=False, disk_mib=1 << 40)
    with pytest.raises(DesktopBootError, match="MiB free, but a machine may write \\d+ MiB"):
        QemuProvider(full, str(image.disk), SCREEN).start_emulator()
