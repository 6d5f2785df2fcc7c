"""The OSWorld client's providers, and what each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

INDEX = "{index}"
"""In `path_to_vm` this stands for the desktop's number, 0 to `num_desktops` - 1."""
OS_TYPES = ("Ubuntu", "Windows")


@dataclass(frozen=True)
class Provider:
    """What one provider needs."""

    packages: Mapping[str, str] = field(default_factory=dict)
    """A module that it imports -> what to pip install for it."""
    programs: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    """Environment variables that it needs to import, or to know whose machines to start."""
    region_variable: str = ""
    """The environment variable with its region; some providers read nothing else."""
    region_argument: bool = False
    """Whether it takes the region as an argument too, though it also needs the variable."""
    shares_vm: bool = False
    """Whether many desktops may start from one `path_to_vm`."""
    allocates: bool = False
    """Whether it makes machines itself if there is no `path_to_vm`."""


_FILES = {"filelock": "filelock", "psutil": "psutil"}
_ALIBABA = {
    "alibabacloud_ecs20140526": "alibabacloud-ecs20140526",
    "alibabacloud_tea_openapi": "alibabacloud-tea-openapi",
    "alibabacloud_tea_util": "alibabacloud-tea-util",
}
_AZURE = {"azure.identity": "azure-identity", "azure.mgmt.compute": "azure-mgmt-compute"}
_VOLCENGINE = ("volcenginesdkcore", "volcenginesdkecs", "volcenginesdkautoscaling")

QEMU = "qemu"
"""Our own (`desktops/vm/provider.py`), not the client's; it starts from the same file as the Docker provider."""

OUR_MACHINES = {
    "embedded": "arpo_verl.desktops.embedded.provider:EmbeddedProvider.of_config",
    QEMU: "arpo_verl.desktops.vm.provider:QemuProvider.of_config",
}
"""Import paths of what makes our own machines, as a recipe may name anybody's: a run imports only the one it uses."""

PROVIDERS: dict[str, Provider] = {
    "docker": Provider({"docker": "docker", **_FILES}, shares_vm=True, allocates=True),
    QEMU: Provider({"qemu.qmp": "qemu.qmp"}, programs=("qemu-img",), shares_vm=True, allocates=True),
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
        # Its manager imports boto3 without using it.
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
