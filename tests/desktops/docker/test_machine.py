"""As OSWorld's own image works: a virtual machine in QEMU, in the container, from the disk that the provider mounts.

Emulated: no KVM is needed, and it takes as long as it takes.
"""

import subprocess
import time

import pytest
from support import ROOT
from support.docker_engine import docker_engine
from support.docker_image import load_image, write_tree
from support.docker_image.machine import make_disk, make_kernel

pytest.importorskip("desktop_env")
docker = pytest.importorskip("docker")

from arpo_verl.desktops.config import EnvironmentConfig  # noqa: E402
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment  # noqa: E402
from arpo_verl.tasks import load_tasks  # noqa: E402
from arpo_verl.tasks.expert import expert_replies  # noqa: E402

pytestmark = [pytest.mark.docker, pytest.mark.release]

TASK = next(task for task in load_tasks("embedded") if task.task_id == "editor-write-hello")


@pytest.fixture(scope="module")
def machine(tree, tmp_path_factory):
    """A desktop in a virtual machine in a container: the machine's own disk, and an image that has QEMU."""
    folder = tmp_path_factory.mktemp("machine")
    try:
        kernel, initrd = make_kernel(folder, ROOT / ".cache")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"Debian's kernel cannot be fetched: {error.stderr}")
    disk = folder / "Ubuntu.qcow2"
    make_disk(tree, disk)
    image = folder / "image.tar"
    write_tree(image, ("qemu-system-x86",), [(str(kernel), "/boot/vmlinuz"), (str(initrd), "/boot/initrd")])
    environment = {"SCREEN": "640x480", "KVM": "N", "RAM_SIZE": "1G", "CPU_CORES": "1"}
    config = EnvironmentConfig(
        provider="docker",
        provider_options={"environment": environment},
        screen_size=(640, 480),
        path_to_vm=str(disk),
        cache_dir=str(folder / "cache"),
        action_pause_s=2,
        evaluate_pause_s=2,
        boot_timeout_s=600,
    )
    with docker_engine():
        client = docker.from_env()
        load_image(client, image)
        desktop = OSWorldEnvironment(config)
        yield desktop
        desktop.close()
        left = client.containers.list(all=True, ignore_removed=True)
        client.close()
    assert left == []


def test_a_machine_in_qemu_boots_plays_and_is_evaluated(machine, capsys):
    started = time.monotonic()
    machine.prepare()
    booted_s = time.monotonic() - started
    machine.reset(TASK)
    for reply in expert_replies(TASK.task_id):
        for action in reply.actions:
            machine.step(action)
    assert machine.evaluate().score == 1.0
    with capsys.disabled():
        print(
            f"\nemulated machine: boot to first screenshot {booted_s:.1f} s, whole {time.monotonic() - started:.1f} s"
        )
