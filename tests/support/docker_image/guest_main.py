"""Process 1 of the test's container, and of the machine in it: what OSWorld's image and its virtual machine do.

`/System.qcow2` decides: a disk image is booted in QEMU, from whose machine this file is run again; anything else stands
for one, and the embedded desktop's guest runs in the container itself, which is its sandbox. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import socket
import sys

DISK = "/System.qcow2"
PORTS = (5000, 9222, 8080)
USER_ID = 1000
PIDS = 1024
COMMAND_TIMEOUT_S = 120.0
STEP_TIMEOUT_S = 240.0
"""How long a part of a session may take, in an emulated machine on a busy one."""
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    if os.path.isfile(DISK) and open(DISK, "rb").read(4) == b"QFI\xfb":
        boot_machine()
    width, height = map(int, os.environ.get("SCREEN", "1920x1080").split("x"))
    control, init_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connections, init_connections = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        control.close()
        connections.close()
        run_guest(init_control, init_connections)
    init_control.close()
    init_connections.close()
    expect(control, "ready")
    command = {"width": width, "height": height, "command_timeout_s": COMMAND_TIMEOUT_S}
    control.send(json.dumps({"boot": command}).encode())
    expect(control, "boot")
    serve(control, connections)


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


def run_guest(control: socket.socket, connections: socket.socket) -> None:
    """The guest's first process. Not process 1 of its namespace, so it asks for the orphans that it must collect."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    from arpo_guest import init, interpreter, layout, privileges, session

    session.STEP_TIMEOUT_S = STEP_TIMEOUT_S
    privileges.become(USER_ID)
    privileges.bound(PIDS, None)
    privileges.hide()
    os.umask(0o022)
    layout.adopt()
    interpreter.warm_up()
    init.main(control, connections)


def expect(control: socket.socket, key: str) -> None:
    packet = control.recv(65536)
    if key not in json.loads(packet or b"{}"):
        sys.exit(f"the guest did not say {key!r}: {packet.decode()!r}")


def serve(control: socket.socket, connections: socket.socket) -> None:
    """Hand every connection that comes to the guest, until it ends. Nothing listened before: OSWorld polls for it."""
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    for port in PORTS:
        selector.register(socket.create_server(("0.0.0.0", port), backlog=64), selectors.EVENT_READ, port)
    while True:
        for key, _ in selector.select():
            if key.data is None:
                sys.exit("the guest ended")
            client, _ = key.fileobj.accept()
            with client:
                socket.send_fds(connections, [b"%d" % key.data], [client.fileno()])


if __name__ == "__main__":
    main()
