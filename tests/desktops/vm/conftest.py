"""Machines that boot, in software emulation: no KVM is needed, and it takes as long as it takes."""

import subprocess

import pytest
from support import machines
from support.machines import BOOT_TIMEOUT_S, SCREEN

from arpo_verl.desktops.config import VmConfig
from arpo_verl.desktops.vm import template
from arpo_verl.desktops.vm.build import BuildError


@pytest.fixture(scope="session")
def image():
    """An image of Debian's packages, built once."""
    reason = machines.why_not()
    if reason:
        pytest.skip(reason)
    try:
        return machines.image()
    except BuildError as error:
        pytest.skip(f"Debian's packages cannot be had: {error}")


@pytest.fixture(scope="session")
def config():
    """Emulated machines of one processor; templates in a folder of the tests' own, kept for their next run."""
    try:
        binary = machines.qemu()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"QEMU cannot be fetched: {error.stderr}")
    return VmConfig(memory_mib=1024, cpus=1, accelerator="tcg", binary=binary, folder=str(machines.TEMPLATES))


@pytest.fixture(scope="session")
def folder(config, image):
    """The template, made once."""
    return template.ensure(config, image, SCREEN, BOOT_TIMEOUT_S)
