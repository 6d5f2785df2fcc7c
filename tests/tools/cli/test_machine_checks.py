"""What `arpo-verl doctor` says of this machine and of the walls around desktops, and what to do if one is missing."""

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from arpo_verl.desktops.embedded import cgroups, guest_process, packages, seccomp, users
from arpo_verl.errors import DesktopBootError
from arpo_verl.tools.cli.checks import Finding, machine

needs_desktop = pytest.mark.skipif(bool(packages.missing_packages()), reason="needs the embedded desktop's programs")


@needs_desktop
@pytest.mark.desktop
def test_what_is_in_force_is_told():
    findings = {finding.subject: finding for finding in machine.check_sandbox()}
    assert list(findings) == ["desktop sandbox", "desktop system calls", "desktop limits"]
    assert findings["desktop sandbox"].ok
    bounded = {controller for parent in cgroups.parents() for controller in parent.controllers}
    assert findings["desktop limits"].ok == (bounded == set(cgroups.CONTROLLERS))


@needs_desktop
def test_what_is_not_is_told_with_what_to_do(monkeypatch):
    monkeypatch.setattr(guest_process, "GuestProcess", lambda: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(cgroups, "parents", lambda: [])
    monkeypatch.setattr(users, "available_ids", lambda: None)
    monkeypatch.setattr(seccomp, "is_supported", lambda: False)
    sandboxed, calls, limits = machine.check_sandbox()
    assert sandboxed.ok and "user namespace" in sandboxed.detail
    assert not (calls.ok or limits.ok) and calls.remedy and limits.remedy
    assert "a busy desktop slows its neighbours" in limits.detail and "docs/embedded-desktop.md" in limits.remedy
    half = [cgroups.Parent(cgroups.Path("/sys/fs/cgroup/user"), 2, ("memory", "pids"))]
    monkeypatch.setattr(cgroups, "parents", lambda: half)
    limits = machine.check_sandbox()[-1]
    assert (
        not limits.ok and "RLIMIT" not in limits.detail and "memory+pids in /sys/fs/cgroup/user (v2)" in limits.detail
    )


@needs_desktop
def test_a_sandbox_that_does_not_start_is_told_with_its_reason(monkeypatch):
    def refuse():
        raise DesktopBootError("the desktop's sandbox ended: bwrap: no; set `sysctl -w x=1`")

    monkeypatch.setattr(guest_process, "GuestProcess", refuse)
    (finding,) = machine.check_sandbox()
    assert not finding.ok and finding.remedy == "set `sysctl -w x=1`" and "bwrap: no" in finding.detail


LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("address, told", [("0.0.0.0", True), ("127.0.0.1", False)])
def test_ray_on_all_addresses_beside_a_docker_engine_is_told(monkeypatch, address, told):
    words = ["bash", "-c", 'exec -a ray::Worker "$@"', "bash", sys.executable, "-c", LISTEN, address]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as worker:
        port = worker.stdout.readline().strip()
        monkeypatch.setattr(machine, "_check_docker", lambda: Finding("Docker", True, "engine 0"))
        findings = [finding for finding in machine.check_machine() if finding.subject == "Ray"]
        assert any(f" {port}" in finding.detail for finding in findings) == told
        assert all("RAY_AUTH_MODE" in finding.remedy and not finding.required for finding in findings)
        monkeypatch.setattr(machine, "_check_docker", lambda: Finding("Docker", False, "none"))
        assert "Ray" not in [finding.subject for finding in machine.check_machine()]
        worker.stdin.close()


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_the_sandbox_is_tried():
    assert machine._check_sandbox().ok


def test_a_machine_without_bubblewrap_or_namespaces_is_told_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = machine._check_sandbox()
    assert not finding.ok and not finding.required and "bubblewrap" in finding.remedy
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
