"""Check that a provider of the OSWorld client can work here, and turn options into the client's.

The client itself fails late: a missing `vmrun` makes an endless loop, a missing VM file an empty folder that Docker
boots for ever, a missing variable an error deep in an import. So we check all of that before anything starts.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import Any

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.providers import INDEX, OS_TYPES, PROVIDERS, QEMU, Provider
from arpo_verl.errors import ConfigError, DesktopBootError, MissingDependencyError
from arpo_verl.versions import pip_install

DEFAULT_SNAPSHOT = "init_state"
# The client's Docker provider puts the VM that it fetches here, below the working folder.
DOCKER_FOLDER = "docker_vm_data"
DOCKER_FILES = dict(zip(OS_TYPES, ("Ubuntu.qcow2", "Windows-10-x64.qcow2"), strict=True))
# The providers whose `path_to_vm` is a file.
_VM_FILES = {"docker": ".qcow2", QEMU: ".qcow2", "vmware": ".vmx", "virtualbox": ".vbox"}
# The client's own default.
_PROXY_FILE = "evaluation_examples/settings/proxy/dataimpulse.json"


def check_provider(config: EnvironmentConfig, index: int = 0) -> None:
    """Check that this machine can start desktop `index`.

    It reads a `.env` of the working folder or above, as the client does, and sets the provider's region variable.

    Raises:
        MissingDependencyError: names every Python package and program that is not here.
        ConfigError: names every variable that is not set, or what is wrong with the path, the region or the proxies.
        DesktopBootError: no Docker engine answers; it may do so later.
    """
    provider = PROVIDERS[config.provider]
    _load_dotenv()
    _check_installed(config, provider)
    _set_region(config, provider)
    missing = [name for name in provider.variables if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"environment.provider={config.provider} needs {', '.join(missing)} in the environment of the processes "
            "that host desktops; export them before `ray start` on each node, or write them to a .env in its folder"
        )
    _check_files(config, index)
    if config.provider == "docker":
        _check_engine()


def require_bubblewrap() -> None:
    """Check that this machine can give verdicts in a sandbox.

    Raises:
        MissingDependencyError: bubblewrap is not installed.
    """
    if shutil.which("bwrap") is None:
        raise MissingDependencyError(
            "OSWorld's evaluators run in a sandbox, which needs bubblewrap on each machine that hosts desktops; "
            "run: apt-get install -y --no-install-recommends bubblewrap"
        )


def client_options(config: EnvironmentConfig, index: int) -> dict[str, Any]:
    """Return the arguments of `DesktopEnv` for its machine: provider_name, region, path_to_vm, snapshot_name."""
    region = config.region
    if region is None and PROVIDERS[config.provider].region_argument:
        region = os.environ[PROVIDERS[config.provider].region_variable]
    return {
        "provider_name": config.provider,
        "region": region,
        "path_to_vm": vm_path(config, index),
        "snapshot_name": config.snapshot or _default_snapshot(config, region),
    }


def vm_path(config: EnvironmentConfig, index: int) -> str | None:
    """Return the machine of desktop `index`; with None, the provider makes one."""
    if config.path_to_vm is not None:
        return os.path.expandvars(os.path.expanduser(config.path_to_vm.replace(INDEX, str(index))))
    if config.provider in ("docker", QEMU):
        return str(Path(DOCKER_FOLDER, DOCKER_FILES[config.os_type]).absolute())
    return None


def desktop_index(name: str) -> int:
    """Return the number in a desktop's name, which the pool gives as `desktop-INDEX.GENERATION`; 0 without one."""
    found = re.search(r"-(\d+)(?:\.\d+)?$", name)
    return int(found[1]) if found else 0


def _default_snapshot(config: EnvironmentConfig, region: str | None) -> str:
    if config.provider != "aws":
        return DEFAULT_SNAPSHOT
    # On AWS a snapshot is an image, and reverting a desktop starts the image again.
    from desktop_env.providers.aws.manager import IMAGE_ID_MAP

    image: str | None = IMAGE_ID_MAP.get(region, {}).get(tuple(config.screen_size))
    if image is None:
        known = "; ".join(f"{name} with {[list(size) for size in sizes]}" for name, sizes in IMAGE_ID_MAP.items())
        raise ConfigError(
            f"environment.region must be one that OSWorld has an image in ({known}), got {region!r} with "
            f"{list(config.screen_size)}; or name an image of yours by environment.snapshot"
        )
    return image


def _load_dotenv() -> None:
    try:
        from dotenv import find_dotenv, load_dotenv
    except ImportError:
        return
    load_dotenv(find_dotenv(usecwd=True))


def _check_installed(config: EnvironmentConfig, provider: Provider) -> None:
    name = config.provider
    packages = {pip for module, pip in provider.packages.items() if not _importable(module)}
    # The evaluators of every provider run in bubblewrap.
    wanted = (*provider.programs, "bwrap", *([config.vm.binary] if name == QEMU else []))
    programs = [program for program in wanted if shutil.which(program) is None]
    remedies = []
    if packages:
        remedies.append(f"the Python packages that `{pip_install(*sorted(packages))}` brings")
    if programs:
        remedies.append(f"{', '.join(programs)} on the PATH")
    if remedies:
        raise MissingDependencyError(
            f"environment.provider={name} needs {' and '.join(remedies)}, on each machine that hosts desktops"
        )


def _check_engine() -> None:
    import docker

    try:
        docker.from_env().close()  # asks the engine for its version
    except docker.errors.DockerException as error:
        host = os.environ.get("DOCKER_HOST", "the default socket")
        raise DesktopBootError(
            f"no Docker engine answers at {host} (DOCKER_HOST): {error}; `docker info` must work for this user"
        ) from error


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent of it
        return False


def _set_region(config: EnvironmentConfig, provider: Provider) -> None:
    variable = provider.region_variable
    if not variable or config.region is None:
        return
    if not provider.region_argument and os.environ.get(variable, config.region) != config.region:
        raise ConfigError(
            f"environment.region must be what {variable} says, {os.environ[variable]!r}, got {config.region!r}: the "
            f"client's {config.provider} provider looks only there; unset one of the two"
        )
    os.environ.setdefault(variable, config.region)


def _check_files(config: EnvironmentConfig, index: int) -> None:
    path = vm_path(config, index)
    if config.provider in _VM_FILES and not Path(str(path)).is_file():
        remedy = "`arpo-verl fetch-vm` gets OSWorld's" if config.provider in ("docker", QEMU) else "give its full path"
        kind = _VM_FILES[config.provider]
        raise ConfigError(f"environment.path_to_vm must be the machine's {kind} file here, got {path!r}; {remedy}")
    proxies = os.environ.get("PROXY_CONFIG_FILE", _PROXY_FILE)
    if config.proxy and not Path(proxies).is_file():
        raise ConfigError(
            f"environment.proxy=true needs a file of proxies, and {proxies!r} is none; set PROXY_CONFIG_FILE to a JSON "
            'list of {"host", "port", "username", "password"}'
        )
