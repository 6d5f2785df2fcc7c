"""The command in any environment: it answers without EasyR1, and says what to install."""

import subprocess
import sys

import pytest

from arpo_verl.easyr1 import command
from arpo_verl.versions import another_verl


def test_help_needs_no_easyr1_and_imports_nothing_heavy():
    code = "import sys; from arpo_verl.easyr1.command import main; status = main(['--help']); "
    code += "assert not {'verl', 'torch', 'ray', 'omegaconf'} & set(sys.modules); sys.exit(status)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "config=FILE" in done.stdout, done.stderr


@pytest.mark.parametrize("found", [None, "the ARPO reference, a fork of EasyR1"])
def test_beside_another_package_of_the_name_it_says_what_to_install(found, monkeypatch, capsys):
    monkeypatch.setattr(command, "another_verl", lambda: found)
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: object())
    assert command.main(["config=easyr1/embedded"]) == 2
    told = capsys.readouterr().err
    assert f"the package `verl` here is {found or 'stock veRL'}, not EasyR1" in told and "git clone" in told


def test_without_any_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert command.main(["config=easyr1/embedded"]) == 2
    assert "EasyR1 is not installed; install EasyR1 in its own environment" in capsys.readouterr().err


@pytest.mark.skipif(another_verl() != "EasyR1", reason="needs the environment of `make easyr1 EASYR1_HOME=FOLDER`")
def test_an_option_that_easyr1_does_not_know_is_refused_before_anything_starts(capsys):
    assert command.main(["config=easyr1/embedded", "worker.rollout.temprature=1"]) == 2
    assert "EasyR1 refuses the configuration: Key 'temprature'" in capsys.readouterr().err
