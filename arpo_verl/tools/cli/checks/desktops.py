"""This checks what protects this machine and other desktops from a desktop's programs here."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import platform
from collections.abc import Sequence

from arpo_verl.desktops.embedded import cgroups, packages, sandbox, seccomp
from arpo_verl.errors import ArpoError
from arpo_verl.tools.cli.checks.finding import Finding

_WORDS = {cgroups.MEMORY: "memory", cgroups.CPU: "processors", cgroups.PIDS: "processes"}
_LIMITS = {
    cgroups.MEMORY: "RLIMIT_DATA bounds each program's, tmpfs that of files",
    cgroups.CPU: "nothing bounds them: a busy desktop slows its neighbours",
    cgroups.PIDS: "RLIMIT_NPROC bounds its user's",
}


def check_sandbox() -> list[Finding]:
    """Check that an embedded desktop's sandbox starts, and find its limits."""
    if packages.missing_packages(packages.BASE):
        return []  # the check of its programs reports this
    from arpo_verl.desktops.embedded.guest_process import GuestProcess

    try:
        GuestProcess().close()
    except ArpoError as error:
        what, _, remedy = str(error).partition("; ")
        return [Finding("desktop sandbox", False, what, remedy, required=False)]
    return [_check_user(), _check_calls(), _check_groups()]


def _check_user() -> Finding:
    if sandbox.is_own_user():
        return Finding("desktop sandbox", True, "starts; each desktop runs as a user of its own", required=False)
    detail = "starts, in a user namespace: a desktop's programs share this user's kernel limits (inotify, keys)"
    return Finding("desktop sandbox", True, detail, required=False)


def _check_calls() -> Finding:
    detail = f"{len(seccomp.ABSENT) + len(seccomp.FORBIDDEN)} system calls and new namespaces are refused (seccomp)"
    if seccomp.is_supported():
        return Finding("desktop system calls", True, detail, required=False)
    detail = f"all are allowed: there is no filter for {platform.machine()}"
    return Finding("desktop system calls", False, detail, "host desktops on x86_64 or aarch64", required=False)


def _check_groups() -> Finding:
    found = cgroups.parents()
    where = ", ".join(f"{'+'.join(parent.controllers)} in {parent.folder} (v{parent.version})" for parent in found)
    missing = [name for name in cgroups.CONTROLLERS if not any(name in parent.controllers for parent in found)]
    if not missing:
        return Finding("desktop limits", True, f"memory, processors and processes by cgroups: {where}", required=False)
    words = [f"{_WORDS[name]} ({_LIMITS[name]})" for name in missing]
    detail = f"no cgroup for {', '.join(words)}" + (f"; {where}" if where else "")
    remedy = "docs/embedded-desktop.md, Limits: `systemd-run --user --scope`, or a group in a privileged container"
    return Finding("desktop limits", False, detail, remedy, required=False)


def check_ray_beside_docker() -> list[Finding]:
    """Check whether Ray listens on all of this machine's addresses, where a Docker desktop might reach it."""
    try:
        import psutil
    except ImportError:  # then there is no Docker provider either
        return []
    found: dict[str, set[int]] = {}
    for connection in psutil.net_connections("tcp"):
        listens = connection.status == psutil.CONN_LISTEN and ipaddress.ip_address(connection.laddr.ip).is_unspecified
        if listens and connection.pid:
            with contextlib.suppress(psutil.Error):
                name = _ray_process(psutil.Process(connection.pid).cmdline())
                found.setdefault(name, set()).add(connection.laddr.port)
    found.pop("", None)
    if not found:
        return []
    ports = "; ".join(f"{name} {', '.join(map(str, sorted(ports)))}" for name, ports in sorted(found.items()))
    detail = f"listens on all addresses beside a Docker engine, protected only by the desktops' own filters: {ports}"
    remedy = "give the host the rules of docs/providers.md, and Ray a token (RAY_AUTH_MODE=token)"
    return [Finding("Ray", False, detail, remedy, required=False)]


def _ray_process(command: Sequence[str]) -> str:
    """Return which part of Ray a command line runs; empty for other programs."""
    program = os.path.basename(command[0]) if command else ""
    if program in ("gcs_server", "raylet"):
        return program
    if program.startswith("ray::"):
        return "workers"
    return "dashboard and agents" if any("/ray/" in word for word in command[1:3]) else ""
