"""`arpo-verl vm check --measure` measures the time and memory of machines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.desktops.vm.boot import start
from arpo_verl.desktops.vm.config import VmConfig
from arpo_verl.desktops.vm.image import Image
from arpo_verl.desktops.vm.machine import VirtualMachine
from arpo_verl.desktops.vm.template import folder_of
from arpo_verl.types import Size

CLONES = 8


@dataclass(frozen=True)
class Taken:
    """These are the costs of one machine until its desktop showed."""

    start: str
    """`cold boot`, `clone`, or how many clones ran together."""
    seconds: float
    cpu_s: float
    """Processor time of QEMU and its guest."""
    proportional_mib: float
    """Memory, of which shared pages are divided among the machines."""


def measure(config: VmConfig, image: Image, screen: Size, timeout_s: float, clones: int = CLONES) -> list[Taken]:
    """Measure a cold boot, a clone that runs alone, and then `clones` that start one after the other and run together.

    Raises:
        DesktopBootError: a machine does not come up.
    """
    folder = folder_of(config, image, screen)
    taken = []
    for origin, source, count in (("cold boot", None, 1), ("clone", folder, 1), (f"{clones} clones", folder, clones)):
        machines: list[VirtualMachine] = []
        with ExitStack() as stack:
            seconds = []
            for _ in range(count):
                began = time.monotonic()
                machines.append(start(config, image, screen, source, timeout_s))
                stack.callback(machines[-1].close)
                seconds.append(time.monotonic() - began)
            taken += [
                Taken(origin, one_s, machine.processor_s(), proportional_mib(machine))
                for machine, one_s in zip(machines, seconds, strict=True)
            ]
    return taken


def as_table(taken: Sequence[Taken]) -> str:
    """Return the figures as a table of text."""
    lines = [f"{'':16}{'seconds':>10}{'CPU s':>10}{'MiB':>10}"]
    lines += [f"{one.start:16}{one.seconds:10.2f}{one.cpu_s:10.2f}{one.proportional_mib:10.0f}" for one in taken]
    return "\n".join(lines)


def proportional_mib(machine: VirtualMachine) -> float:
    """Return QEMU's memory in MiB, of which shared pages are divided among their users."""
    lines = Path(f"/proc/{machine.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
