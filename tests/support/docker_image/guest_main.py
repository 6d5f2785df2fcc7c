"""Process 1 of the test's container, and of the machine in it: what OSWorld's image and its virtual machine do.

`/System.qcow2` decides: a disk image is booted in QEMU, from whose machine this file is run again; anything else stands
for one, and the embedded desktop's guest runs in the container itself, which is its sandbox. Standard library only.
"""

from __future__ import annotations

import os

DISK = "/System.qcow2"
PORTS = (5000, 9222, 8080)


def main() -> None:
    if os.path.isfile(DISK) and open(DISK, "rb").read(4) == b"QFI\xfb":
        boot_machine()
    from arpo_guest.machine import serve_desktop

    serve_desktop(*map(int, os.environ.get("SCREEN", "1920x1080").split("x")))


def boot_machine() -> None:
    """Become QEMU. The disk is read-only here and is written to elsewhere, as in OSWorld's image."""
    environment = os.environ
    has_kvm = environment.get("KVM") != "N" and os.path.exists("/dev/kvm")
    forwards = ",".join(f"hostfwd=tcp::{port}-:{port}" for port in PORTS)
    arguments = {
        "-accel": "kvm" if has_kvm else "tcg",
        "-cpu": "host" if has_kvm else "max",
        "-m": environment.get("RAM_SIZE", "1G"),
        "-smp": environment.get("CPU_CORES", "1"),
        "-kernel": "/boot/vmlinuz",
        "-initrd": "/boot/initrd",
        "-append": f"console=ttyS0 panic=-1 quiet mitigations=off SCREEN={environment.get('SCREEN', '1920x1080')}",
        "-drive": f"file={DISK},if=virtio,snapshot=on,format=qcow2",
        "-netdev": f"user,id=net,{forwards}",
        "-device": "virtio-net-pci,netdev=net,romfile=",
    }
    options = [word for pair in arguments.items() for word in pair]
    os.execvp(
        "qemu-system-x86_64", ["qemu", *options, "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"]
    )


if __name__ == "__main__":
    main()
