"""`arpo-verl vm` makes images and templates for the provider `qemu`. Experimental, see docs/vm-desktops.md."""

from __future__ import annotations

import argparse
import contextlib
import logging
import time
from pathlib import Path

from arpo_verl.desktops.config import OSWORLD_SCREEN, EnvironmentConfig, VmConfig
from arpo_verl.desktops.vm import build
from arpo_verl.desktops.vm.image import Image
from arpo_verl.lib.config import build_config
from arpo_verl.tools.cli.options import parse_options, parse_size
from arpo_verl.types import Size

BOOT_TIMEOUT_S = 1800.0
CLONES = 8


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("vm")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    one = actions.add_parser("build", help="make an image of Debian's packages, with the embedded suite's programs")
    one.add_argument("folder", type=Path, help="folder for the image; the recipe's path_to_vm is its disk.qcow2")
    one.add_argument("--osworld", action="store_true", help="add Chromium, LibreOffice, GIMP, VLC (1 GB)")
    one.add_argument("--package", action="append", default=[], help="add this Debian package; may be repeated")
    one.add_argument("--suite", default=build.SUITE, help="Debian's release (default: %(default)s)")
    one.add_argument("--snapshot", metavar="TIME", help="time on snapshot.debian.org, such as 20261101T000000Z")
    one.set_defaults(run=_build)

    for name, help_, run in (
        ("template", "boot an image once and save the template that its desktops are cloned from", _template),
        ("check", "check that a template is complete and fits this machine", _check),
    ):
        one = actions.add_parser(name, help=help_)
        one.add_argument("image", help="the image's .qcow2 file")
        one.add_argument("--screen", type=parse_size, default=OSWORLD_SCREEN, help="WIDTHxHEIGHT (default: 1920x1080)")
        one.add_argument("--vm", action="append", default=[], metavar="KEY=VALUE", help="as environment.vm.KEY")
        one.set_defaults(run=run)
    one.add_argument("--measure", action="store_true", help="boot and clone machines, and print their times and memory")


def _build(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    made = build.build(
        args.folder, osworld=args.osworld, suite=args.suite, snapshot=args.snapshot, extra=tuple(args.package)
    )
    print(f"environment.path_to_vm={made.disk}")
    return 0


def _template(args: argparse.Namespace) -> int:
    from arpo_verl.desktops.vm import template

    config, image, screen = _machine(args)
    print(template.ensure(config, image, screen, BOOT_TIMEOUT_S, say=print))
    return 0


def _check(args: argparse.Namespace) -> int:
    from arpo_verl.desktops.vm import template

    config, image, screen = _machine(args)
    folder = template.folder_of(config, image, screen)
    reason = template.why_unfit(config, image, screen, folder)
    print(f"{folder}: {reason or 'it is complete and fits this machine'}")
    if reason or not args.measure:
        return 1 if reason else 0
    _measure(config, image, screen, folder)
    return 0


def _measure(config: VmConfig, image: Image, screen: Size, folder: Path) -> None:
    """Print what a cold boot, a clone that runs alone and clones that run together took until their desktops showed.

    The memory is QEMU's, of which shared pages are divided among their users.
    """
    from arpo_verl.desktops.vm import template

    print(f"{'':16}{'seconds':>10}{'CPU s':>10}{'MiB':>10}")
    for origin, source, count in (("cold boot", None, 1), ("clone", folder, 1), (f"{CLONES} clones", folder, CLONES)):
        with contextlib.ExitStack() as stack:
            machines = []
            for _ in range(count):
                began = time.monotonic()
                machine = template.start(config, image, screen, source, BOOT_TIMEOUT_S)
                stack.callback(machine.close)
                machines.append((machine, time.monotonic() - began))
            for machine, taken_s in machines:
                lines = Path(f"/proc/{machine.pid}/smaps_rollup").read_text().splitlines()
                mib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
                print(f"{origin:16}{taken_s:10.2f}{machine.processor_s():10.2f}{mib:10.0f}")


def _machine(args: argparse.Namespace) -> tuple[VmConfig, Image, Size]:
    config = build_config(VmConfig, "environment.vm", parse_options(args.vm, "--vm", "environment.vm."))
    return config, Image.at(args.image), EnvironmentConfig(screen_size=args.screen).screen_size
