"""`arpo-verl doctor`: what is installed, what is registered with veRL, what is missing and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.versions import OPTIONAL, TESTED, installed_version, is_tested_verl

GIB = 1024**3
# veRL, its models' caches and checkpoints.
MIN_DISK_GIB = 10
# Ray keeps its object store there; below this it falls back to slow disk files.
MIN_SHM_GIB = 1

# Run in a fresh interpreter, as each Ray worker is one, because a plugin that fails to load vanishes without a word.
_REGISTRATION_PROBE = """
import json, verl
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
print("PROBE" + json.dumps({
    "agent loop gui_agent": "gui_agent" in _agent_loop_registry,
    "advantage estimator replay_grpo": "replay_grpo" in ADV_ESTIMATOR_REGISTRY,
    "rollout engine transformers (CPU only)": ("transformers", "async") in _ROLLOUT_REGISTRY,
}))
"""

_OSWORLD_PROBE = "import arpo_verl.environments.osworld_client"


@dataclass(frozen=True)
class Finding:
    """One line of the report; `remedy` is what to do where `ok` is False. `required` ones decide the exit status."""

    subject: str
    ok: bool
    detail: str
    remedy: str = ""
    required: bool = True


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the command's parser."""
    parser = commands.add_parser("doctor", help="check this machine and say what to do")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every finding; 0 when nothing required is missing."""
    findings = [*check_versions(), *check_registrations(), check_osworld(), *check_embedded_desktop(), *check_machine()]
    for finding in findings:
        mark = "ok  " if finding.ok else ("FAIL" if finding.required else "note")
        print(f"[{mark}] {finding.subject}: {finding.detail}")
        if not finding.ok and finding.remedy:
            print(f"       -> {finding.remedy}")
    failed = [finding for finding in findings if finding.required and not finding.ok]
    print(f"{len(failed)} of {len(findings)} checks failed" if failed else "everything required is here")
    return 1 if failed else 0


def check_versions() -> list[Finding]:
    """Python and the packages the plugin leans on."""
    findings = [Finding("python", sys.version_info >= (3, 10), platform.python_version(), "use Python 3.10 or newer")]
    for package, tested in TESTED.items():
        installed = installed_version(package)
        remedy = "arpo-verl install-osworld" if package == "desktop-env" else f"pip install {package}=={tested}"
        if installed is None:
            findings.append(Finding(package, False, "not installed", remedy))
        elif package == "verl":
            findings.append(Finding(package, is_tested_verl(installed), f"{installed} (tested with {tested})", remedy))
        else:
            findings.append(Finding(package, True, f"{installed} (tested with {tested})"))
    for package in OPTIONAL:
        installed = installed_version(package)
        findings.append(
            Finding(package, installed is not None, installed or "not installed", f"pip install {package}", False)
        )
    return findings


def check_registrations() -> list[Finding]:
    """Whether a fresh interpreter that imports veRL finds our names."""
    env = {**os.environ, "VERL_PLATFORM": os.environ.get("VERL_PLATFORM", "cpu")}
    probe = subprocess.run(
        [sys.executable, "-c", _REGISTRATION_PROBE], capture_output=True, text=True, env=env, timeout=300
    )
    line = next((line for line in probe.stdout.splitlines() if line.startswith("PROBE")), None)
    if line is None:
        last = probe.stderr.strip().splitlines()[-1:] or ["no output"]
        return [Finding("plugin", False, f"importing veRL failed: {last[0]}", "pip install . beside a working veRL")]
    remedy = "pip install . again, and unset VERL_USE_EXTERNAL_PLUGINS if it leaves arpo_verl out"
    return [
        Finding(name, found, "registered" if found else "not registered", remedy)
        for name, found in json.loads(line.removeprefix("PROBE")).items()
    ]


def check_osworld() -> Finding:
    """Whether OSWorld's client imports here; desktops may be hosted by another Python."""
    probe = subprocess.run([sys.executable, "-c", _OSWORLD_PROBE], capture_output=True, text=True, timeout=300)
    last = (probe.stderr.strip().splitlines() or ["no output"])[-1]
    detail = "imports" if probe.returncode == 0 else f"does not import here: {last}"
    remedy = "arpo-verl install-osworld, or host desktops with another Python (environment.py_executable)"
    return Finding("OSWorld's client", probe.returncode == 0, detail, remedy)


def check_embedded_desktop() -> list[Finding]:
    """The programs of the embedded desktop."""
    from arpo_verl.desktop import packages

    missing = packages.missing_packages()
    if not missing:
        return [Finding("embedded desktop", True, "all programs installed", required=False)]
    command = packages.install_command(missing)
    return [Finding("embedded desktop", False, f"missing: {', '.join(missing)}", command, required=False)]


def check_machine() -> list[Finding]:
    """GPU, Docker, KVM, disk and shared memory."""
    return [_check_gpu(), _check_docker(), _check_kvm(), *_check_space()]


def _check_gpu() -> Finding:
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
        gpus = [line for line in listing.stdout.splitlines() if line.startswith("GPU")]
    except (OSError, subprocess.TimeoutExpired):
        gpus = []
    remedy = "set VERL_PLATFORM=cpu and train the embedded recipe, or use a machine with GPUs"
    return Finding("GPU", bool(gpus), f"{len(gpus)} found", remedy, required=False)


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
        return Finding("Docker", False, "its Python package is not installed", "pip install docker", required=False)
    except docker.errors.DockerException as error:
        return Finding("Docker", False, f"no engine answers ({error})", remedy, required=False)
    return Finding("Docker", True, f"engine {version}", required=False)


def _check_kvm() -> Finding:
    usable = os.access("/dev/kvm", os.R_OK | os.W_OK)
    remedy = "let this user read and write /dev/kvm (group kvm; nested virtualization in a VM); a VM without it boots "
    remedy += "in many minutes: raise environment.boot_timeout_s"
    return Finding("KVM", usable, "usable" if usable else "/dev/kvm is not there or not ours", remedy, required=False)


def _check_space() -> list[Finding]:
    findings = []
    for subject, folder, least in (
        ("disk", Path.cwd(), MIN_DISK_GIB),
        ("shared memory", Path("/dev/shm"), MIN_SHM_GIB),
    ):
        if not folder.exists():
            continue
        free = shutil.disk_usage(folder).free / GIB
        remedy = f"free at least {least} GiB there" + (" (Docker: --shm-size)" if subject == "shared memory" else "")
        findings.append(Finding(subject, free >= least, f"{free:.1f} GiB free in {folder}", remedy, required=False))
    return findings
