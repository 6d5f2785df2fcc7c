"""Check that every node sees the same run folder and has the same packages.

Every training node writes shards of a checkpoint, any node TransferQueue's state, and all read both back. The driver
writes and reads the rest. On separate disks the shards would be apart, and a resumed run would fail.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from arpo_verl.errors import ConfigError
from arpo_verl.versions import pip_install

ANSWER_TIMEOUT_S = 300.0
"""Seconds for a node to answer: it may first have to start a worker process."""
PACKAGES = ("verl", "vllm", "transformers", "torch")
"""Packages that a run's nodes must all have in one version, beside arpo_verl."""
PATIENCE_S = 60.0
"""Seconds for a new folder to appear: nfs(5) caches what it knows of a folder for up to `acdirmax`, 60 s."""


def require_shared(folder: Path, option: str, patience_s: float = PATIENCE_S) -> None:
    """Refuse a folder that some node of this job's cluster does not see. With a single node, do nothing.

    Nodes without CPUs only host desktops and are not asked: veRL places none of its processes there.

    Args:
        option: the folder's name in the recipe, for the message.
        patience_s: seconds that a node looks for the folder.

    Raises:
        ConfigError: nodes do not see it (the message names them), or it cannot be written.
    """
    nodes = _cpu_nodes()
    if len(nodes) < 2:
        return
    mark = folder / f".seen-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise ConfigError(f"{option} must be a folder that can be written to, got {folder}: {error}") from error
    try:
        seen = _ask(nodes, _appears, str(mark), patience_s)
        blind = [name for name, sees_it in seen if not sees_it]
    finally:
        mark.unlink(missing_ok=True)
    if blind:
        raise ConfigError(
            f"{option} must be a folder that all nodes share, got {folder}, which {', '.join(blind)} "
            "does not see: a checkpoint's parts would be on different disks, and no run could resume; "
            "put run_dir on storage that is mounted at the same path everywhere"
        )


def _appears(path: str, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while not os.path.isfile(path):
        if time.monotonic() >= deadline:
            return False
        time.sleep(1.0)
    return True


def require_same_packages() -> None:
    """Refuse a cluster of which a node has other packages than this process, or does not load our parts.

    Raises:
        ConfigError: names each node, each package, and how to install it there.
    """
    nodes, look = _cpu_nodes(), _package_probe()
    if len(nodes) < 2:
        return
    here = look(PACKAGES)
    problems = [
        f"{name} has {package} {has or 'not at all'}, not {wanted or 'none'}: {_install(package, wanted)}"
        for name, there in _ask(nodes, look, PACKAGES)
        for package, wanted in here.items()
        if (has := there[package]) != wanted
    ]
    if problems:
        raise ConfigError("all nodes must have the packages of the trainer's node; " + "; ".join(problems))


def _install(package: str, version: str | None) -> str:
    if package in PACKAGES:
        return pip_install(f"{package}=={version.partition('+')[0]}") if version else f"pip uninstall {package}"
    return "install arpo_verl there as on the trainer's node, with pip: a folder on the path has no entry points"


def _package_probe() -> Callable[[Sequence[str]], dict[str, str | None]]:
    """Return a function that looks at a node's packages. Being local, Ray sends it whole: a node may lack arpo_verl."""

    def look(packages: Sequence[str]) -> dict[str, str | None]:
        import hashlib
        from importlib import metadata, util
        from pathlib import Path

        found: dict[str, str | None] = {}
        for package in packages:
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                found[package] = None
        spec = util.find_spec("arpo_verl")
        found["arpo_verl"] = None
        if spec is not None and spec.origin is not None:
            source, digest = Path(spec.origin).parent, hashlib.sha256()
            for path in sorted(source.rglob("*.py")):
                digest.update(path.relative_to(source).as_posix().encode() + b"\0" + path.read_bytes())
            found["arpo_verl"] = f"of the source {digest.hexdigest()[:8]}"
        ours = {entry.group for entry in metadata.entry_points(name="arpo_verl")}
        found["arpo_verl's entry points"] = ", ".join(sorted(ours)) or None
        return found

    return look


def _cpu_nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]


def _ask(nodes: Sequence[dict[str, Any]], function: Callable[..., Any], *args: Any) -> list[tuple[str, Any]]:
    """Call a function on each node; return each node's name with the answer."""
    asked = ray.remote(num_cpus=0)(function)
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    answers = [asked.options(scheduling_strategy=place).remote(*args) for place in places]
    # With the address too: containers on several hosts may have the same host name.
    names = [f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})" for node in nodes]
    return list(zip(names, ray.get(answers, timeout=ANSWER_TIMEOUT_S), strict=True))
