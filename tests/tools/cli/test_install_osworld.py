"""`arpo-verl install-osworld`: the plan, the guard against moved packages, and a real second run."""

import re
import sys
from pathlib import Path

import pytest
from support import ROOT

from arpo_verl.errors import MissingDependencyError
from arpo_verl.tools.cli import install_osworld
from arpo_verl.tools.cli.install_osworld import NO_DEPS, check_nothing_moved, constraint_lines, installed_versions, plan
from arpo_verl.tools.cli.main import main


def test_everything_that_is_installed_is_held_in_place_but_what_the_command_itself_installs():
    lines = constraint_lines({"numpy": "2.4.6", "torch": "2.11.0+cu126", "desktop-env": "1.0.1"})
    assert lines == "numpy==2.4.6\ntorch==2.11.0+cu126\n"


@pytest.mark.parametrize("uv", ["/opt/uv", None])
def test_only_the_packages_with_impossible_pins_go_in_without_their_dependencies(uv):
    whole, alone = plan("/opt/python", uv, Path("held.txt"))
    assert whole[0] == alone[0] == (uv or "/opt/python")
    assert "/opt/python" in whole and "/opt/python" in alone
    assert whole[whole.index("--constraint") + 1] == "held.txt" and "--no-deps" not in whole
    assert {"docker", "pandas", "python-xlib==0.33"} <= set(whole)
    assert not any(requirement.split("==")[0] in NO_DEPS for requirement in whole)
    assert alone[alone.index("--no-deps") + 1 :] == [f"{name}=={version}" for name, version in NO_DEPS.items()]


def test_a_package_that_moved_or_went_is_named_with_the_way_back():
    before = {"numpy": "2.4.6", "torch": "2.11.0", "pyautogui": "0.9.0", "six": "1"}
    after = {"numpy": "1.26.4", "torch": "2.11.0", "pyautogui": "0.9.54", "new": "1"}
    with pytest.raises(install_osworld.PackagesMovedError, match=r"numpy 2.4.6 -> 1.26.4, six 1 -> gone.*numpy==2.4.6"):
        check_nothing_moved(before, after)
    check_nothing_moved(before, before | {"new": "1", "pyautogui": "0.9.54"})


def test_the_list_is_kept_here_alone():
    makefile = (ROOT / "Makefile").read_text()
    assert "install-osworld" in makefile
    assert not re.search(r"(desktop-env|pyautogui)==\d", makefile + (ROOT / "setup.py").read_text())


def test_a_python_without_pip_is_told_what_to_do(capsys, monkeypatch):
    monkeypatch.setattr(install_osworld, "installed_versions", lambda python: {"numpy": "2"})
    monkeypatch.setattr(install_osworld, "find_uv", lambda: None)
    assert main(["install-osworld"]) == 2
    assert "has no pip; put uv on the PATH" in capsys.readouterr().err


def test_a_failed_installation_is_told_with_the_way_out(monkeypatch):
    with pytest.raises(MissingDependencyError, match="environment.py_executable"):
        install_osworld._execute([sys.executable, "-c", "raise SystemExit(3)"])


@pytest.mark.release
def test_a_second_run_needs_no_network_and_changes_nothing(capsys, monkeypatch):
    pytest.importorskip("desktop_env")
    if install_osworld.find_uv() is None:
        pytest.skip("pip asks its index even when all is installed")
    monkeypatch.setenv("UV_OFFLINE", "1")
    before = installed_versions(sys.executable)
    assert main(["install-osworld"]) == 0
    assert installed_versions(sys.executable) == before
    assert "0 packages added, none changed" in capsys.readouterr().out
