"""Machines at addresses of their own, and the tools and clouds that start them: stand-ins at the outermost boundary.

A machine is an embedded desktop behind the ports of OSWorld's machines on an address of this host's loopback network.
`vmrun` is an executable on the PATH; a cloud is its SDK's modules, with the calls that OSWorld's provider makes.
Everything that was asked is kept in `calls`.
"""

from __future__ import annotations

import importlib.machinery
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from arpo_verl.desktops.embedded.provider import EmbeddedProvider
from arpo_verl.types import Size
from support.http_server import Server
from support.port_forward import PortForward

_numbers = itertools.count(1)


class Machine:
    """One desktop at `address`, with OSWorld's ports."""

    def __init__(self, size: Size):
        self.address = f"127.{64 + os.getpid() % 128}.{os.getpid() // 128 % 256}.{next(_numbers)}"
        self.running = False
        self._provider = EmbeddedProvider(size)
        self._forwards = {port: PortForward((self.address, port)) for port in (5000, 9222, 8080)}

    def start(self) -> None:
        """A desktop that is as it was when the machine was last running, or new."""
        self._provider.start_emulator() if not self._provider.is_alive() else None
        _, server, chromium, _, vlc = self._provider.get_ip_address().split(":")
        for port, target in {5000: server, 9222: chromium, 8080: vlc}.items():
            self._forwards[port].target = int(target)
        self.running = True

    def revert(self) -> None:
        """Off, and fresh at the next start."""
        self._provider.stop_emulator()
        self.running = False

    def destroy(self) -> None:
        self.revert()
        for forward in self._forwards.values():
            forward.close()


class Host:
    """What all stand-ins share: their machines and the record of what was asked."""

    def __init__(self, size: Size):
        self.calls: list[Any] = []
        self.machines: dict[str, Machine] = {}
        self._size = size

    def create(self, name: str) -> Machine:
        self.machines[name] = Machine(self._size)
        return self.machines[name]

    def run_instance(self, *asked: Any) -> str:
        """A cloud starts a machine; its name."""
        self.calls.append(("run_instances", *asked))
        name = f"i-{len(self.machines)}"
        self.create(name).start()
        return name

    def close(self) -> None:
        for machine in self.machines.values():
            machine.destroy()


# --- Hypervisors on this host --------------------------------------------------------------------------------------


class Tool:
    """An executable that hands its arguments to a function of this process: `answer(arguments) -> output`."""

    def __init__(self, folder: Path, name: str, answer: Callable[[list[str]], str]):
        self._server = Server(lambda request, body: request.answer(200, answer(json.loads(body)).encode()))
        path = folder / name
        path.write_text(
            f"#!{sys.executable} -SE\n"
            "import json, sys, urllib.request\n"
            f"url, body = '{self._server.url}', json.dumps(sys.argv[1:]).encode()\n"
            "sys.stdout.write(urllib.request.urlopen(url, body, timeout=60).read().decode())\n"
        )
        path.chmod(0o755)

    def close(self) -> None:
        self._server.close()


def vmrun(host: Host) -> Callable[[list[str]], str]:
    """VMware's `vmrun` for the machines of `host`, named by their .vmx files."""

    def answer(arguments: list[str]) -> str:
        host.calls.append(arguments)
        assert arguments[:2] == ["-T", "ws"]
        command, *rest = arguments[2:]
        if command == "list":
            return "\n".join(["Total running VMs:", *(n for n, machine in host.machines.items() if machine.running)])
        machine = host.machines[rest[0]]
        if command == "getGuestIPAddress":
            return machine.address + "\n"
        {"start": machine.start, "revertToSnapshot": machine.revert, "stop": machine.revert}[command]()
        return ""

    return answer


# --- Clouds --------------------------------------------------------------------------------------------------------


class Module(ModuleType):
    """A module of a cloud's SDK: with what it is given, and of any other name a class of plain attributes."""

    def __init__(self, name: str, **contents: Any):
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.__path__ = []
        self.__dict__.update(contents)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (SimpleNamespace,), {})


class Ec2:
    """`boto3.client('ec2')`."""

    def __init__(self, host: Host, region: str):
        self._host = host
        self._region = region

    def run_instances(self, **options: Any) -> dict[str, Any]:
        return {"Instances": [{"InstanceId": self._host.run_instance(self._region, options)}]}

    def describe_instances(self, InstanceIds: list[str]) -> dict[str, Any]:  # noqa: N803
        machine = self._host.machines[InstanceIds[0]]
        instance = {
            "State": {"Name": "running" if machine.running else "terminated"},
            "PrivateIpAddress": machine.address,
            "SecurityGroups": [{"GroupId": "sg-1"}],
            "SubnetId": "subnet-1",
            "InstanceType": "t3.medium",
        }
        return {"Reservations": [{"Instances": [instance]}]}

    def terminate_instances(self, InstanceIds: list[str]) -> None:  # noqa: N803
        self._host.calls.append(("terminate_instances", InstanceIds))
        self._host.machines[InstanceIds[0]].revert()

    def get_waiter(self, _: str) -> Any:
        return SimpleNamespace(wait=lambda **_: None)


def aws(host: Host) -> dict[str, Module]:
    """boto3 and botocore."""
    error = type("ClientError", (Exception,), {})
    client = lambda service, region_name: Ec2(host, region_name) if service == "ec2" else _refuse(service)  # noqa: E731
    return {
        "boto3": Module("boto3", client=client),
        "botocore": Module("botocore"),
        "botocore.exceptions": Module("botocore.exceptions", ClientError=error),
    }


def _refuse(service: str) -> Any:
    raise RuntimeError(f"this account may not use {service}")


class AzureMachines:
    """`ComputeManagementClient` and `NetworkManagementClient` for the machine `GROUP/NAME` of `host`."""

    def __init__(self, host: Host):
        self._host = host
        done = SimpleNamespace(wait=lambda timeout=None: None, result=lambda: SimpleNamespace(id="/disks/osdisk0"))
        self.virtual_machines = SimpleNamespace(
            get=self._get,
            begin_start=lambda group, name: (self._machine(group, name).start(), done)[1],
            begin_deallocate=lambda group, name: (setattr(self._machine(group, name), "running", False), done)[1],
            begin_create_or_update=lambda group, name, vm: (self._restart(group, name), done)[1],
        )
        self.snapshots = SimpleNamespace(get=self._snapshot)
        self.disks = SimpleNamespace(
            begin_delete=lambda *_: done, get=self._no_disk, begin_create_or_update=lambda *_: done
        )
        card = SimpleNamespace(public_ip_address=SimpleNamespace(id="/ips/ip"))
        self.network_interfaces = SimpleNamespace(get=lambda *_: SimpleNamespace(ip_configurations=[card]))
        self.public_ip_addresses = SimpleNamespace(
            get=lambda group, _: SimpleNamespace(ip_address=next(iter(host.machines.values())).address)
        )

    def _machine(self, group: str, name: str) -> Machine:
        return self._host.machines[f"{group}/{name}"]

    def _get(self, group: str, name: str, expand: str = "") -> Any:
        state = "running" if self._machine(group, name).running else "deallocated"
        interface = SimpleNamespace(id="/subscriptions/s/resourceGroups/g/networkInterfaces/card")
        disk = SimpleNamespace(managed_disk=SimpleNamespace(id="/disks/osdisk1"), create_option="Attach")
        return SimpleNamespace(
            instance_view=SimpleNamespace(statuses=[SimpleNamespace(code=f"PowerState/{state}")]),
            network_profile=SimpleNamespace(network_interfaces=[interface]),
            storage_profile=SimpleNamespace(os_disk=disk),
            zones=None,
        )

    def _snapshot(self, group: str, name: str) -> Any:
        self._host.calls.append(("snapshot", group, name))
        return SimpleNamespace(id="/snapshots/1", location="here")

    def _restart(self, group: str, name: str) -> None:
        self._machine(group, name).revert()

    def _no_disk(self, *_: Any) -> Any:
        raise AzureNotFoundError


class AzureNotFoundError(Exception):
    """`ResourceNotFoundError`."""


def azure(host: Host) -> dict[str, Module]:
    """The four azure packages; the client's manager imports boto3 as well."""

    def manage(credential: Any, subscription: str) -> AzureMachines:
        host.calls.append(("subscription", subscription))
        return AzureMachines(host)

    modules = {
        "azure.identity": {},
        "azure.mgmt.compute": {"ComputeManagementClient": manage},
        "azure.mgmt.network": {"NetworkManagementClient": manage},
        "azure.core.exceptions": {"ResourceNotFoundError": AzureNotFoundError},
    }
    plain = ("azure", "azure.mgmt", "azure.core", "boto3")
    return {name: Module(name, **contents) for name, contents in modules.items()} | {n: Module(n) for n in plain}
