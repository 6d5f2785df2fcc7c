"""A small virtual machine of Debian's packages for QEMU in the container: kernel, first file system, disk."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from arpo_verl.desktops.embedded.guest import layout
from support.docker_image import PATHS, WRITABLE, guest_command

KERNEL = "linux-image-cloud-amd64"
BUSYBOX = "busybox-static"
MODULES = (
    *("virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk"),
    *("failover", "net_failover", "virtio_net", "irqbypass", "ccp", "kvm", "kvm-amd"),
)
DISK_MIB = 1024
# QEMU's user network gives the one machine in it this address and gateway.
INIT = """#!/bin/busybox sh
PATH=/bin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
for pass in 1 2 3; do for module in /modules/*; do insmod $module 2>/dev/null; done; done
ifconfig lo up
ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up
route add default gw 10.0.2.2
mount -t ext4 /dev/vda /root
mount -o move /dev /root/dev
mkdir -p /root/dev/shm /root/dev/pts
mount -t devpts pts /root/dev/pts
chmod 666 /root/dev/kvm
mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
for name in WRITABLE; do mount -t tmpfs -o mode=1777 tmpfs /root/$name; done
exec switch_root /root /usr/bin/env PYTHONPATH=PATHS PATH=GUEST_PATH COMMAND
"""


def make_kernel(folder: Path, cache: Path) -> tuple[Path, Path]:
    """Fetch the kernel, once, and build the first file system; both files.

    Raises:
        subprocess.CalledProcessError: apt cannot fetch them.
    """
    packages = cache / "vm-kernel"
    if not packages.is_dir():
        _fetch(packages)
    (vmlinuz,) = packages.glob("boot/vmlinuz-*")
    root = folder / "initrd"
    for name in ("bin", "dev", "root", "modules"):
        (root / name).mkdir(parents=True)
    shutil.copy(packages / "bin/busybox", root / "bin/busybox")
    for module in MODULES:
        for file in packages.glob(f"lib/modules/*/kernel/**/{module}.ko"):
            shutil.copy(file, root / "modules")
    words = {"WRITABLE": " ".join(WRITABLE), "GUEST_PATH": layout.PATH, "PATHS": PATHS}
    init = INIT.replace("COMMAND", " ".join(guest_command()))
    for word, value in words.items():
        init = init.replace(word, value)
    (root / "init").write_text(init)
    (root / "init").chmod(0o755)
    initrd = folder / "initrd.cpio"
    with initrd.open("wb") as archive:
        listing = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
        command = [str(packages / "bin/busybox"), "cpio", "-o", "-H", "newc"]
        subprocess.run(command, input=listing.encode(), stdout=archive, cwd=root, check=True, stderr=subprocess.DEVNULL)
    return vmlinuz, initrd


def make_disk(tree: Path, disk: Path) -> None:
    """Write `disk`, a qcow2 file, from the archive `tree`."""
    root, raw = disk.with_suffix(".root"), disk.with_suffix(".raw")
    root.mkdir()
    _run("tar", "--extract", "--file", str(tree), "--directory", str(root))
    _run("mkfs.ext4", "-q", "-d", str(root), str(raw), f"{DISK_MIB}M")
    _run("qemu-img", "convert", "-O", "qcow2", str(raw), str(disk))
    shutil.rmtree(root)
    raw.unlink()


def _fetch(folder: Path) -> None:
    made = folder.with_suffix(".new")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    _run("apt-get", "update", "--quiet")
    shown = _run("apt-cache", "depends", KERNEL)
    (kernel,) = {line.split()[-1] for line in shown.splitlines() if "Depends: linux-image" in line}
    _run("apt-get", "download", kernel, BUSYBOX, folder=made)
    for package in made.glob("*.deb"):
        _run("dpkg-deb", "--extract", str(package), str(made))
        package.unlink()
    made.rename(folder)


def _run(*command: str, folder: Path | None = None) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout
