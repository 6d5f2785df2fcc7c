"""What a sandbox of evaluators sees of this Python: installed packages, wherever they are, and no working folder."""

import sys

from arpo_verl.desktops.osworld.verdict import host_command


def test_a_sandbox_sees_packages_that_pip_put_into_a_folder_but_no_working_folder(tmp_path, monkeypatch):
    packages, work = tmp_path / "packages", tmp_path / "work"
    (packages / "desktop_env-1.0.dist-info").mkdir(parents=True)
    work.mkdir()
    monkeypatch.setattr(sys, "path", ["", str(work), str(packages), *sys.path])
    words = host_command.command(3, lambda content: 4)
    assert f"'{packages}'" in words[-1] and str(work) not in words[-1] and str(work) not in words
    assert str(packages) in words
