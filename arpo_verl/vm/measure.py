"""What machines take: `arpo-verl vm check --measure`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from arpo_verl.types import Size
from arpo_verl.vm.boot import start
from arpo_verl.vm.config import VmConfig
from arpo_verl.vm.image import Image
from arpo_verl.vm.machine import VirtualMachine
from arpo_verl.vm.template import folder_of

CLONES = 8


@dataclass(frozen=True)
class Taken:
    """By one machine until its desktop had been looked at."""

    start: str
    """`cold boot`, `clone`, or how many clones lived together."""
    seconds: float
    cpu_s: float
    """Processors' time of QEMU and its guest."""
    proportional_mib: float
    """Memory, what several share divided among them."""


def measure(config: VmConfig, image: Image, screen: Size, timeout_s: float, clones: int = CLONES) -> list[Taken]:
    """A cold boot, a clone that lives alone, and one after the other as many as are to live together.

    Raises:
        DesktopBootError: one does not come up.
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
    """As text."""
    lines = [f"{'':16}{'seconds':>10}{'CPU s':>10}{'MiB':>10}"]
    lines += [f"{one.start:16}{one.seconds:10.2f}{one.cpu_s:10.2f}{one.proportional_mib:10.0f}" for one in taken]
    return "\n".join(lines)


def proportional_mib(machine: VirtualMachine) -> float:
    """Memory of QEMU, what it shares with others divided among them."""
    lines = Path(f"/proc/{machine.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
