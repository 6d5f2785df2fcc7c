"""What each provider of the OSWorld client needs, and how the recipe's words become the client's.

The client finds out late and badly: a missing `vmrun` is an endless loop, a missing VM file an empty folder that Docker
makes and boots for ever, a missing variable an error deep in an import. So all is asked here before anything starts.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo_verl.errors import ConfigError, DesktopBootError, MissingDependencyError

if TYPE_CHECKING:
    from arpo_verl.environments.config import EnvironmentConfig

INDEX = "{index}"
"""In `path_to_vm` it becomes the desktop's number, 0 to `num_desktops` - 1."""
DEFAULT_SNAPSHOT = "init_state"
OS_TYPES = ("Ubuntu", "Windows")
# Where the client's Docker provider puts the VM that it fetches, below the working folder.
DOCKER_FOLDER = "docker_vm_data"
DOCKER_FILES = dict(zip(OS_TYPES, ("Ubuntu.qcow2", "Windows-10-x64.qcow2"), strict=True))
# Where `path_to_vm` is a file.
_VM_FILES = {"docker": ".qcow2", "vmware": ".vmx", "virtualbox": ".vbox"}
# The client's own default.
_PROXY_FILE = "evaluation_examples/settings/proxy/dataimpulse.json"


@dataclass(frozen=True)
class Provider:
    """One provider's needs."""

    packages: Mapping[str, str] = field(default_factory=dict)
    """What its modules import -> what to pip install for it."""
    programs: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """Environment variables without which it does not even import, or does not know whose machines to start."""
    region_variable: str = ""
    """Where it looks for its region; some look nowhere else."""
    region_argument: bool = False
    """Whether it takes the region from us, the variable being asked for all the same."""
    shares_vm: bool = False
    """Whether many desktops may start from one `path_to_vm`."""
    allocates: bool = False
    """Whether it makes machines by itself where there is no `path_to_vm`."""


_FILES = {"filelock": "filelock", "psutil": "psutil"}
_ALIBABA = {
    "alibabacloud_ecs20140526": "alibabacloud-ecs20140526",
    "alibabacloud_tea_openapi": "alibabacloud-tea-openapi",
    "alibabacloud_tea_util": "alibabacloud-tea-util",
}
_AZURE = {"azure.identity": "azure-identity", "azure.mgmt.compute": "azure-mgmt-compute"}
_VOLCENGINE = ("volcenginesdkcore", "volcenginesdkecs", "volcenginesdkautoscaling")

PROVIDERS: dict[str, Provider] = {
    "docker": Provider({"docker": "docker", **_FILES}, shares_vm=True, allocates=True),
    "vmware": Provider(_FILES, programs=("vmrun",)),
    "virtualbox": Provider(_FILES, programs=("VBoxManage",)),
    "aws": Provider(
        {"boto3": "boto3"},
        variables=("AWS_REGION", "AWS_SUBNET_ID", "AWS_SECURITY_GROUP_ID"),
        region_variable="AWS_REGION",
        region_argument=True,
        allocates=True,
    ),
    "azure": Provider(
        # Its manager imports boto3 without a use for it.
        {**_AZURE, "azure.mgmt.network": "azure-mgmt-network", "boto3": "boto3", "psutil": "psutil"},
        variables=("AZURE_SUBSCRIPTION_ID",),
    ),
    "aliyun": Provider(
        _ALIBABA,
        variables=(
            "ALIYUN_REGION",
            "ALIYUN_VSWITCH_ID",
            "ALIYUN_SECURITY_GROUP_ID",
            "ALIYUN_IMAGE_ID",
            "ALIYUN_ACCESS_KEY_ID",
            "ALIYUN_ACCESS_KEY_SECRET",
            "ALIYUN_INSTANCE_TYPE",
        ),
        region_variable="ALIYUN_REGION",
        allocates=True,
    ),
    "volcengine": Provider(
        dict.fromkeys(_VOLCENGINE, "volcengine-python-sdk"),
        variables=(
            "VOLCENGINE_ACCESS_KEY_ID",
            "VOLCENGINE_SECRET_ACCESS_KEY",
            "VOLCENGINE_REGION",
            "VOLCENGINE_SUBNET_ID",
            "VOLCENGINE_SECURITY_GROUP_ID",
            "VOLCENGINE_INSTANCE_TYPE",
            "VOLCENGINE_IMAGE_ID",
            "VOLCENGINE_ZONE_ID",
            "VOLCENGINE_DEFAULT_PASSWORD",
        ),
        region_variable="VOLCENGINE_REGION",
        allocates=True,
    ),
}


def check_provider(config: EnvironmentConfig, index: int = 0) -> None:
    """Check that this machine can start desktop `index`. Reads a `.env` of the working folder or above, as the client's
    users know it, and tells the client the recipe's region where it only looks at a variable.

    Raises:
        MissingDependencyError: names every Python package and program that is not here.
        ConfigError: names every variable that is not set, or what is wrong with the path, the region or the proxies.
        DesktopBootError: no Docker engine answers; it may yet.
    """
    provider = PROVIDERS[config.provider]
    _load_dotenv()
    _check_installed(config.provider, provider)
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


def client_options(config: EnvironmentConfig, index: int) -> dict[str, Any]:
    """`DesktopEnv`'s arguments that say which machine: provider_name, region, path_to_vm, snapshot_name."""
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
    """The machine of desktop `index`; None leaves it to the provider to make one."""
    if config.path_to_vm is not None:
        return os.path.expandvars(os.path.expanduser(config.path_to_vm.replace(INDEX, str(index))))
    if config.provider == "docker":
        return str(Path(DOCKER_FOLDER, DOCKER_FILES[config.os_type]).absolute())
    return None


def desktop_index(name: str) -> int:
    """The number in a desktop's name, `desktop-INDEX.GENERATION` as the pool gives it; 0 where there is none."""
    found = re.search(r"-(\d+)(?:\.\d+)?$", name)
    return int(found[1]) if found else 0


def _default_snapshot(config: EnvironmentConfig, region: str | None) -> str:
    if config.provider != "aws":
        return DEFAULT_SNAPSHOT
    # On AWS a snapshot is an image, and a desktop is reverted by starting the image anew.
    from desktop_env.providers.aws.manager import IMAGE_ID_MAP

    image = IMAGE_ID_MAP.get(region, {}).get(tuple(config.screen_size))
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


def _check_installed(name: str, provider: Provider) -> None:
    packages = {pip for module, pip in provider.packages.items() if not _importable(module)}
    programs = [program for program in provider.programs if shutil.which(program) is None]
    remedies = []
    if packages:
        remedies.append(f"the Python packages that `pip install {' '.join(sorted(packages))}` brings")
    if programs:
        remedies.append(f"{', '.join(programs)} on the PATH")
    if remedies:
        raise MissingDependencyError(
            f"environment.provider={name} needs {' and '.join(remedies)}, where the desktops are hosted"
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
        remedy = "`arpo-verl fetch-vm` gets OSWorld's" if config.provider == "docker" else "give its full path"
        kind = _VM_FILES[config.provider]
        raise ConfigError(f"environment.path_to_vm must be a {kind} file of the machine, here, got {path!r}; {remedy}")
    proxies = os.environ.get("PROXY_CONFIG_FILE", _PROXY_FILE)
    if config.proxy and not Path(proxies).is_file():
        raise ConfigError(
            f"environment.proxy=true needs a file of proxies, and {proxies!r} is none; set PROXY_CONFIG_FILE to a JSON "
            'list of {"host", "port", "username", "password"}'
        )
