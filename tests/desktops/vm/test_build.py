"""What an image is made of, before anything is installed."""

import shlex

import pytest

from arpo_verl.desktops.embedded import packages
from arpo_verl.desktops.vm import build
from arpo_verl.errors import ConfigError, MissingDependencyError


def words(folder, snapshot=None):
    return build._mmdebstrap(["bash", "xterm"], "bookworm", snapshot, folder, folder, folder / "root.tar")


def test_the_image_has_our_guest_and_starts_it(tmp_path):
    build._write_tree(tmp_path)
    assert (tmp_path / "opt/arpo/arpo_guest/machine.py").is_file()
    assert (tmp_path / "opt/arpo/bin/google-chrome").stat().st_mode & 0o111 == 0o111
    assert "from arpo_guest.machine import main" in (tmp_path / "etc/systemd/system/arpo-desktop.service").read_text()
    assert not list(tmp_path.rglob("__pycache__"))
    for package in ("pyautogui", "pyscreeze", "pytweening"):
        assert (tmp_path / "usr/lib/python3/dist-packages" / package / "__init__.py").is_file()
    names = build.package_names(osworld=True)
    assert {*packages.TASKS, "chromium"} <= set(names) and "bubblewrap" not in names


def test_packages_are_of_today_or_of_a_snapshot_that_pins_every_source_and_the_files_times(tmp_path):
    today = words(tmp_path)
    assert "--include=bash,xterm" in today
    assert "deb http://deb.debian.org/debian-security bookworm-security main" in today
    said = " ".join(words(tmp_path, snapshot="20261101T000000Z"))
    assert "deb.debian.org" not in said
    assert said.count("http://snapshot.debian.org/archive/debian") == 3
    assert build._epoch("20261101T000000Z") == 1793491200
    assert build._epoch(None) == build._epoch(None)
    with pytest.raises(ConfigError, match="--snapshot must be a time as 20261101T000000Z, got '2026-11-01'"):
        build._epoch("2026-11-01")


def test_a_folder_s_name_may_have_spaces(tmp_path):
    folder = tmp_path / "my images"
    hooks = [shlex.split(word.partition("-hook=")[2]) for word in words(folder) if "-hook=" in word]
    assert ["sync-in", str(folder), "/"] in hooks
    assert [hook[2] for hook in hooks if hook[0] == "download"] == [
        str(folder / name) for name in ("versions", "vmlinuz", "initrd.img")
    ]


def test_programs_that_are_missing_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        MissingDependencyError, match=r"qemu-system-x86, qemu-utils, (ovmf, )?mmdebstrap, genext2fs; .*apt-get install"
    ):
        build.build(tmp_path / "image")
    assert not (tmp_path / "image").exists()


def test_only_an_image_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # nothing is built
    notes = tmp_path / "notes.txt"
    notes.write_text("years of work")
    for folder in (tmp_path, notes):
        with pytest.raises(ConfigError, match="holds other files than an image; name a new or empty folder"):
            build.build(folder)
    assert notes.read_text() == "years of work"
    (tmp_path / "image.json").write_text("{}")
    with pytest.raises(MissingDependencyError):  # nothing is said against the folder
        build.build(tmp_path)
