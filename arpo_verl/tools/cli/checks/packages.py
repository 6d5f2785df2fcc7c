"""Whether the packages are here, and whether veRL finds ours."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from arpo_verl.lib import run_marker
from arpo_verl.tools.cli.checks import Finding
from arpo_verl.versions import (
    EASYR1,
    FOR_GPUS,
    OLDEST,
    OPTIONAL,
    OTHER_BUILDS,
    OWN_ENVIRONMENT,
    TESTED,
    another_verl,
    describe_broken,
    describe_untested,
    install_for_gpus,
    installed_version,
    is_older,
    is_supported_verl,
    pip_install,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

# We run this in a fresh interpreter, like that of each Ray worker, because a plugin that fails to load vanishes
# silently. It is text, because a module of ours would register the very names that it checks.
_REGISTRATION_PROBE = """
import importlib, importlib.util, json, verl
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from arpo_verl.engines.upstream_patches import all_patches
has_vllm = importlib.util.find_spec("vllm") is not None
lost = {}
for patch in all_patches().values():
    place = f"{patch.module}: {', '.join(patch.names)}"
    is_vllms = patch.module.startswith("vllm")
    if is_vllms and not (has_vllm and patch.is_needed()):
        lost[place] = None
        continue
    try:
        if is_vllms:
            from vllm.plugins import load_general_plugins
            load_general_plugins()
        importlib.import_module(patch.module)
        patch.check()
        lost[place] = ""
    except Exception as error:
        lost[place] = str(error) or type(error).__name__
print("PROBE" + json.dumps([lost, {
    "agent loop gui_agent": "gui_agent" in _agent_loop_registry,
    "advantage estimator replay_grpo": "replay_grpo" in ADV_ESTIMATOR_REGISTRY,
    "rollout engine transformers (CPU only)": ("transformers", "async") in _ROLLOUT_REGISTRY,
}]))
"""

_OSWORLD_PROBE = "import arpo_verl.desktops.osworld.client"

EASYR1_NEEDS = ("torch", "vllm", "flash-attn", "ray", "omegaconf", "torchdata")
PROBE_S = 300.0
"""Seconds to wait until a fresh interpreter has imported veRL or OSWorld's client."""


def check_versions() -> list[Finding]:
    """Check Python and the packages that the plugin needs, or beside EasyR1 those of its door. Beside another fork,
    which needs other versions, it recommends no installation."""
    if (other := another_verl()) == EASYR1:
        return _find_easyr1()
    findings = _find_versions()
    if other is None:
        return findings
    theirs = Finding("verl", False, f"{installed_version('verl') or 'not installed, on the path'}: {other}")
    findings = [theirs if finding.subject == "verl" else finding for finding in findings]
    return [dataclasses.replace(finding, remedy=OWN_ENVIRONMENT) for finding in findings]


def _find_versions() -> list[Finding]:
    python = f"{platform.python_version()}; veRL takes none newer than 3.12, for which its packages for GPUs are built"
    findings = [Finding("python", sys.version_info < (3, 13), python, "use Python 3.12")]
    for package, tested in TESTED.items():
        installed = installed_version(package)
        remedy = "arpo-verl install-osworld" if package == "desktop-env" else pip_install(f"{package}=={tested}")
        if installed is None:
            findings.append(Finding(package, False, "not installed", remedy))
        elif package == "verl":
            findings.append(
                Finding(package, is_supported_verl(installed), f"{installed} (tested with {tested})", remedy)
            )
        else:
            broken = describe_broken(package)
            findings.append(Finding(package, not broken, broken or f"{installed} (tested with {tested})", remedy))
    findings.append(_check_oldest("TransferQueue", "the trainer's queue", True))
    findings += [_check_oldest(package, use, False) for package, use in FOR_GPUS.items()]
    for package in OPTIONAL:
        installed = installed_version(package)
        findings.append(
            Finding(package, installed is not None, installed or "not installed", pip_install(package), False)
        )
    if (untested := describe_untested()) is not None:
        findings.append(Finding("versions", True, untested))
    return findings


def _find_easyr1() -> list[Finding]:
    """Check EasyR1's own environment; EasyR1 itself says which versions fit together."""
    version, remedy = installed_version("verl"), "install it as EasyR1's README says"
    door = f"{version or 'not installed, on the path'}: EasyR1; train by `python -m arpo_verl.easyr1`"
    findings = [Finding("verl", True, door)]
    for package in EASYR1_NEEDS:
        installed = installed_version(package)
        findings.append(Finding(package, installed is not None, installed or "not installed", remedy))
    installed = installed_version("transformers")
    fits = installed is not None and not is_older(installed, "4.54") and is_older(installed, "5")
    needed = f"{installed or 'not installed'}; EasyR1 needs 4.54 or newer, and older than 5"
    return [*findings, Finding("transformers", fits, needed, remedy)]


def check_recipe_packages(config: DictConfig, required: bool = True) -> list[Finding]:
    """Check that the packages that this recipe needs are here.

    Args:
        config: the composed recipe.
        required: False if the run's nodes are other machines than this one.
    """
    return [_check_oldest(package, use, required) for package, use in _needed(config).items()]


def _needed(config: DictConfig) -> dict[str, str]:
    """Return the needed packages, each with the option that needs it. Source: veRL 0.9.1's own imports.

    With `use_remove_padding` veRL replaces Qwen2-VL's attention by one that calls flash-attn, whatever
    `attn_implementation` says.
    """
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    attention = model.override_config.get("attn_implementation", "flash_attention_2")
    needed = {}
    if config.trainer.use_v1:
        needed["TransferQueue"] = "trainer.use_v1=true"
    if rollout.name == "vllm":
        needed["vllm"] = "actor_rollout_ref.rollout.name=vllm"
    if attention == "flash_attention_2":
        needed["flash-attn"] = "the attention flash_attention_2, veRL's default"
    elif model.use_remove_padding:
        needed["flash-attn"] = "actor_rollout_ref.model.use_remove_padding=true"
    if rollout.checkpoint_engine.backend == "nccl":
        needed["cupy-cuda13x"] = "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl"
    return needed


def _check_oldest(package: str, use: str, required: bool) -> Finding:
    """Check that a package is here and new enough."""
    builds = (package, *OTHER_BUILDS.get(package, ()))
    installed, oldest = next(filter(None, map(installed_version, builds)), None), OLDEST.get(package, "0")
    remedy = f"with Python 3.12: {install_for_gpus()}" if package in FOR_GPUS else pip_install(f"{package}>={oldest}")
    if installed is None:
        return Finding(package, False, f"not installed; needed for {use}", remedy, required)
    if is_older(installed, oldest):
        return Finding(package, False, f"{installed}, needed for {use}: {oldest} or newer", remedy, required)
    return Finding(package, True, f"{installed}, for {use}", required=required)


def check_registrations() -> list[Finding]:
    """Check that a fresh interpreter that imports veRL finds our names, and our functions in place of upstream's."""
    if (other := another_verl()) == EASYR1:
        return [Finding("plugin", True, "EasyR1 loads none: its door adds our parts")]
    if other is not None:
        return [Finding("plugin", False, f"the package `verl` here is {other}, which loads no plugin", OWN_ENVIRONMENT)]
    env = {**os.environ, **run_marker.MARKER, "VERL_PLATFORM": os.environ.get("VERL_PLATFORM", "cpu")}
    try:
        probe = _run_probe(_REGISTRATION_PROBE, env)
    except subprocess.TimeoutExpired:
        return [_too_slow("plugin", "veRL")]
    line = next((line for line in probe.stdout.splitlines() if line.startswith("PROBE")), None)
    if line is None:
        last = probe.stderr.strip().splitlines()[-1:] or ["no output"]
        return [Finding("plugin", False, f"importing veRL failed: {last[0]}", "install it beside a working veRL")]
    remedy = "install arpo-verl again, and unset VERL_USE_EXTERNAL_PLUGINS if it leaves arpo_verl out"
    lost, registered = json.loads(line.removeprefix("PROBE"))
    names = [
        Finding(name, found, "registered" if found else "not registered", remedy) for name, found in registered.items()
    ]
    return [*names, *(_patch_finding(place, why, remedy) for place, why in lost.items())]


def _patch_finding(place: str, why: str | None, remedy: str) -> Finding:
    """Report whether a patch is in its place; `why` says why not, and None means that there is nothing to patch."""
    module, _, names = place.partition(": ")
    detail = "not needed here: without vllm, or by its version" if why is None else why or "in place"
    is_needed = not module.startswith("vllm")  # by the trainer; without vLLM's patches a run on GPUs still works
    return Finding(f"patch of {module}", not why, f"{names}: {detail}", remedy, is_needed)


def check_osworld(python: str = sys.executable) -> Finding:
    """Check whether this Python imports OSWorld's client, though another one may host desktops."""
    try:
        probe = _run_probe(_OSWORLD_PROBE, python=python)
    except subprocess.TimeoutExpired:
        return _too_slow("OSWorld's client", "it")
    last = (probe.stderr.strip().splitlines() or ["no output"])[-1]
    detail = "imports" if probe.returncode == 0 else f"does not import here: {last}"
    remedy = "arpo-verl install-osworld, or host desktops with another Python (environment.py_executable)"
    return Finding("OSWorld's client", probe.returncode == 0, detail, remedy)


def _run_probe(
    code: str, env: Mapping[str, str] | None = None, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, env=env, timeout=PROBE_S)


def _too_slow(subject: str, what: str) -> Finding:
    remedy = "run `arpo-verl doctor` again when this machine is less busy"
    return Finding(subject, False, f"importing {what} took more than {PROBE_S:g} s", remedy)
