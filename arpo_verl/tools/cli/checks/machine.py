"""The parts of this machine that training and its desktops use, and what protects it from a desktop's programs."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import platform
import shutil
import subprocess
from pathlib import Path

from arpo_verl.desktops.embedded import cgroups, packages, sandbox, seccomp
from arpo_verl.errors import ArpoError
from arpo_verl.lib import bubblewrap
from arpo_verl.lib.bubblewrap import USER_NAMESPACES, Profile
from arpo_verl.tools.cli.checks import Finding
from arpo_verl.versions import EASYR1, another_verl, pip_install

GIB = 1024**3
KVM = "/dev/kvm"
# Space for veRL, its models' caches and checkpoints.
MIN_DISK_GIB = 10
# Ray keeps its object store in shared memory; with less it uses slow disk files. vLLM takes 65 MB for each process
# there; the images that processes share are elsewhere (`engines/vllm/memory_files.py`).
MIN_SHM_GIB = 1
_WORDS = {cgroups.MEMORY: "memory", cgroups.CPU: "processors", cgroups.PIDS: "processes"}
_LIMITS = {
    cgroups.MEMORY: "RLIMIT_DATA bounds each program's, tmpfs that of files",
    cgroups.CPU: "nothing bounds them: a busy desktop slows its neighbours",
    cgroups.PIDS: "RLIMIT_NPROC bounds its user's",
}


def check_embedded_desktop() -> list[Finding]:
    """Check the programs of the embedded desktop."""
    missing = packages.missing_packages()
    if not missing:
        return [Finding("embedded desktop", True, "all programs installed", required=False)]
    command = packages.install_command(missing)
    return [Finding("embedded desktop", False, f"missing: {', '.join(missing)}", command, required=False)]


def check_machine() -> list[Finding]:
    """Check GPU, Docker and what listens beside it, KVM, the evaluators' sandbox, disk and shared memory."""
    engine = _check_docker()
    beside = check_ray_beside_docker() if engine.ok else ()
    return [_check_gpu(), engine, *beside, _check_kvm(), _check_sandbox(), *_check_space()]


def _check_gpu() -> Finding:
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
        gpus = [line for line in listing.stdout.splitlines() if line.startswith("GPU")]
    except (OSError, subprocess.TimeoutExpired):
        gpus = []
    without = "" if another_verl() == EASYR1 else "set VERL_PLATFORM=cpu and train the embedded recipe, or "
    return Finding("GPU", bool(gpus), f"{len(gpus)} found", f"{without}use a machine with GPUs", required=False)


def _check_sandbox() -> Finding:
    """Try whether OSWorld's evaluators can run in their sandbox here."""
    name = "sandbox of evaluators"
    profile = Profile(["--ro-bind", "/", "/", "--proc", "/proc"], os.geteuid() != 0, ["CAP_SYS_ADMIN"])
    command = bubblewrap.command(profile, ["unshare", "--net", "--mount", "--ipc", "true"])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except OSError:
        remedy = "apt-get install -y --no-install-recommends bubblewrap, on each machine that hosts desktops"
        return Finding(name, False, "bubblewrap is not installed", remedy, required=False)
    except subprocess.TimeoutExpired:
        return Finding(name, False, "bubblewrap does not answer", USER_NAMESPACES, required=False)
    detail = done.stderr.strip()[-200:] or "works"
    return Finding(name, done.returncode == 0, detail, USER_NAMESPACES, required=False)


def _check_docker() -> Finding:
    remedy = "start a Docker engine for OSWorld's Docker desktops; the embedded desktop needs none"
    try:
        import docker

        client = docker.from_env(timeout=10)
        try:
            version = client.version()["Version"]
        finally:
            client.close()
    except ImportError:
        return Finding("Docker", False, "its Python package is not installed", pip_install("docker"), required=False)
    except docker.errors.DockerException as error:
        return Finding("Docker", False, f"no engine answers ({error})", remedy, required=False)
    return Finding("Docker", True, f"engine {version}", required=False)


def _check_kvm() -> Finding:
    if os.access(KVM, os.R_OK | os.W_OK):
        return Finding("KVM", True, f"{KVM} opens", required=False)
    remedy = f"let this user read and write {KVM} (group kvm; nested virtualization in a VM); a VM without it boots in "
    remedy += "many minutes: raise environment.boot_timeout_s"
    return Finding("KVM", False, f"{KVM} is missing, or this user may not use it", remedy, required=False)


def _check_space() -> list[Finding]:
    findings = []
    for subject, folder, least in (
        ("disk", Path.cwd(), MIN_DISK_GIB),
        ("shared memory", Path("/dev/shm"), MIN_SHM_GIB),
    ):
        if not folder.exists():
            continue
        free = shutil.disk_usage(folder).free / GIB
        remedy = f"free at least {least} GiB there" + (
            " (Docker: --shm-size; Kubernetes: an emptyDir)" if subject == "shared memory" else ""
        )
        findings.append(Finding(subject, free >= least, f"{free:.1f} GiB free in {folder}", remedy, required=False))
    return findings


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
    ports: set[int] = set()
    for connection in psutil.net_connections("tcp"):
        listens = connection.status == psutil.CONN_LISTEN and ipaddress.ip_address(connection.laddr.ip).is_unspecified
        if listens and connection.pid:
            with contextlib.suppress(psutil.Error):
                words = psutil.Process(connection.pid).cmdline()[:3]
                if any("/ray/" in word or word.startswith("ray::") for word in words):
                    ports.add(connection.laddr.port)
    if not ports:
        return []
    where = ", ".join(map(str, sorted(ports)))
    detail = f"listens on all addresses beside a Docker engine, protected only by the desktops' own filters: {where}"
    remedy = "give the host the rules of docs/providers.md, and Ray a token (RAY_AUTH_MODE=token)"
    return [Finding("Ray", False, detail, remedy, required=False)]
