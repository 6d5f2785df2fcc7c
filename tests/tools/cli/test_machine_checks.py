"""What `arpo-verl doctor` says of this machine's sandbox for evaluators."""

import shutil

import pytest

from arpo_verl.tools.cli.checks import machine


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_the_sandbox_is_tried():
    assert machine._check_sandbox().ok


def test_a_machine_without_bubblewrap_is_told_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = machine._check_sandbox()
    assert not finding.ok and not finding.required and "bubblewrap" in finding.remedy


def test_a_machine_that_refuses_namespaces_is_told_the_way_out(monkeypatch, tmp_path):
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    finding = machine._check_sandbox()
    assert not finding.ok and "No permissions" in finding.detail and "sysctl" in finding.remedy


@pytest.mark.parametrize(("other", "says_cpu"), [(None, True), ("EasyR1", False)])
def test_beside_easyr1_no_gpu_is_no_reason_to_train_the_recipe_of_verls(monkeypatch, tmp_path, other, says_cpu):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine, "another_verl", lambda: other)
    finding = machine._check_gpu()
    assert not finding.ok and ("VERL_PLATFORM=cpu" in finding.remedy) is says_cpu


def test_kvm_must_open(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "KVM", str(tmp_path))
    assert machine._check_kvm().ok
    monkeypatch.setattr(machine, "KVM", str(tmp_path / "none"))
    finding = machine._check_kvm()
    assert not finding.ok and "is missing, or this user may not use it" in finding.detail
