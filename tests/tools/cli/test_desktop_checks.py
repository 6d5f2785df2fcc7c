"""What `arpo-verl doctor` tells of the walls around desktops: what is in force, and what to do where one is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from arpo_verl.desktops.embedded import cgroups, guest_process, packages, seccomp, users
from arpo_verl.errors import DesktopBootError
from arpo_verl.tools.cli.checks import desktops, machine
from arpo_verl.tools.cli.checks.finding import Finding

pytestmark = pytest.mark.skipif(bool(packages.missing_packages()), reason="the embedded desktop's programs are missing")


@pytest.mark.desktop
def test_what_is_in_force_is_told():
    findings = {finding.subject: finding for finding in desktops.check_sandbox()}
    assert list(findings) == ["desktop sandbox", "desktop system calls", "desktop limits"]
    assert findings["desktop sandbox"].ok
    bounded = {controller for parent in cgroups.parents() for controller in parent.controllers}
    assert findings["desktop limits"].ok == (bounded == set(cgroups.CONTROLLERS))


def test_what_is_not_is_told_with_what_to_do(monkeypatch):
    monkeypatch.setattr(guest_process, "GuestProcess", lambda: _Closed())
    monkeypatch.setattr(cgroups, "parents", lambda: [])
    monkeypatch.setattr(users, "available_ids", lambda: None)
    monkeypatch.setattr(seccomp, "is_supported", lambda: False)
    sandboxed, calls, limits = desktops.check_sandbox()
    assert sandboxed.ok and "user namespace" in sandboxed.detail
    assert not (calls.ok or limits.ok) and calls.remedy and limits.remedy
    assert "a busy desktop slows its neighbours" in limits.detail and "docs/embedded-desktop.md" in limits.remedy
    half = [cgroups.Parent(cgroups.Path("/sys/fs/cgroup/user"), 2, ("memory", "pids"))]
    monkeypatch.setattr(cgroups, "parents", lambda: half)
    limits = desktops.check_sandbox()[-1]
    assert (
        not limits.ok and "RLIMIT" not in limits.detail and "memory+pids in /sys/fs/cgroup/user (v2)" in limits.detail
    )


class _Closed:
    def close(self):
        pass


def test_a_sandbox_that_does_not_start_is_told_with_its_reason(monkeypatch):
    def refuse():
        raise DesktopBootError("the desktop's sandbox ended: bwrap: no; set `sysctl -w x=1`")

    monkeypatch.setattr(guest_process, "GuestProcess", refuse)
    (finding,) = desktops.check_sandbox()
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
        assert any(f"workers {port}" in f.detail or f", {port}" in f.detail for f in findings) == told
        assert all("RAY_AUTH_MODE" in finding.remedy and not finding.required for finding in findings)
        monkeypatch.setattr(machine, "_check_docker", lambda: Finding("Docker", False, "none"))
        assert "Ray" not in [finding.subject for finding in machine.check_machine()]
        worker.stdin.close()


@pytest.mark.parametrize(
    "command, name",
    [
        (["/x/ray/core/src/ray/gcs/gcs_server", "--log_dir=/tmp"], "gcs_server"),
        (["/x/ray/core/src/ray/raylet/raylet"], "raylet"),
        (["ray::IDLE", ""], "workers"),
        (["python", "/x/site-packages/ray/dashboard/dashboard.py"], "dashboard and agents"),
        (["python", "train.py"], ""),
        ([], ""),
    ],
)
def test_rays_processes_are_known_by_their_command(command, name):
    assert desktops._ray_process(command) == name
