"""`python kvm.py` runs a few instructions in a virtual machine of KVM's, and exits with 0 if that works.

On some hosts the device opens and a machine can be made, but no guest runs: under a hypervisor without nested
virtualization, or with one that runs only guests made for it. So the check makes a machine of a few pages, in 64-bit
mode like every desktop's system, and lets it add two numbers in a vector register, which KVM's own emulator cannot do.
It is a separate script with the standard library only, since a broken KVM may hang or end the process. It works on
x86-64 only; elsewhere it says so.

Source: the Linux kernel's Documentation/virt/kvm/api.rst and include/uapi/linux/kvm.h, numbers and layouts; AMD's
Architecture Programmer's Manual, volume 2, for what 64-bit mode needs.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

DEVICE = "/dev/kvm"
TIMEOUT_S = 10.0
"""The time-out; a working guest halts within milliseconds."""

_CREATE_VM, _GET_VCPU_MMAP_SIZE, _CREATE_VCPU, _SET_TSS_ADDR, _RUN = 0xAE01, 0xAE04, 0xAE41, 0xAE47, 0xAE80
_SET_USER_MEMORY_REGION, _GET_REGS, _SET_REGS = 0x4020AE46, 0x8090AE81, 0x4090AE82
_GET_SREGS, _SET_SREGS = 0x8138AE83, 0x4138AE84
_EXIT_HLT = 5
_EXIT_REASON_OFFSET = 8
"""The offset in `struct kvm_run`."""

_REGS, _SREGS_BYTES = "=18Q", 312
_SEGMENT = "=QIH10B"
_DATA_SEGMENTS, _CONTROL_REGISTERS, _EFER = (24, 120), 224, 264
"""Where `struct kvm_sregs` has ds and ss, cr0 with cr2, cr3 and cr4 after it, and the register of 64-bit mode."""

_MEMORY_BYTES = 0x10000
_TSS_ADDRESS = 0x7FFF0000
_CODE, _TABLES = 0x1000, (0x2000, 0x3000, 0x4000)
# mov eax, 21; movd xmm0, eax; paddd xmm0, xmm0; movd eax, xmm0; hlt
_PROGRAM = bytes.fromhex("b815000000 660f6ec0 660ffec0 660f7ec0 f4")
_RESULT = 42


def why_unusable() -> str:
    """Return why no guest runs on this x86-64 machine, although its device opens; empty if one does."""
    try:
        command = [sys.executable, "-I", "-S", __file__]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"{DEVICE} opens, but a guest's first instruction did not end within {TIMEOUT_S:g} s"
    if done.returncode < 0:
        return f"{DEVICE} opens, but running a guest ended by signal {-done.returncode}"
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def run_guest() -> None:
    """Make a virtual machine with one processor in 64-bit mode and let it run the program.

    Raises:
        OSError: the kernel refuses a step; the message names it.
        RuntimeError: the guest did not halt with the result.
    """
    device = _step("open", lambda: os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    machine = _step("KVM_CREATE_VM", lambda: fcntl.ioctl(device, _CREATE_VM, 0))
    _step("KVM_SET_TSS_ADDR", lambda: fcntl.ioctl(machine, _SET_TSS_ADDR, _TSS_ADDRESS))
    memory = _memory()
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    region = struct.pack("=IIQQQ", 0, 0, 0, _MEMORY_BYTES, address)
    _step("KVM_SET_USER_MEMORY_REGION", lambda: fcntl.ioctl(machine, _SET_USER_MEMORY_REGION, region))
    processor = _step("KVM_CREATE_VCPU", lambda: fcntl.ioctl(machine, _CREATE_VCPU, 0))
    special = bytearray(_SREGS_BYTES)
    _step("KVM_GET_SREGS", lambda: fcntl.ioctl(processor, _GET_SREGS, special))
    _enter_64_bit_mode(special)
    _step("KVM_SET_SREGS", lambda: fcntl.ioctl(processor, _SET_SREGS, bytes(special)))
    registers = bytearray(struct.pack(_REGS, *[0] * 16, _CODE, 0x2))  # the last: flags, of which one is always set
    _step("KVM_SET_REGS", lambda: fcntl.ioctl(processor, _SET_REGS, bytes(registers)))
    size = _step("KVM_GET_VCPU_MMAP_SIZE", lambda: fcntl.ioctl(device, _GET_VCPU_MMAP_SIZE, 0))
    shared = mmap.mmap(processor, size)
    _step("KVM_RUN", lambda: fcntl.ioctl(processor, _RUN, 0))
    (reason,) = struct.unpack_from("=I", shared, _EXIT_REASON_OFFSET)
    fcntl.ioctl(processor, _GET_REGS, registers)
    (result,) = struct.unpack_from("=Q", registers)
    if (reason, result) != (_EXIT_HLT, _RESULT):
        raise RuntimeError(
            f"{DEVICE} opens, but a test guest ended with exit reason {reason} and {result}, instead of halting "
            f"(exit reason {_EXIT_HLT}) with {_RESULT}"
        )


def _memory() -> mmap.mmap:
    """Return memory with the program, and with page tables that map the first 2 MiB to themselves."""
    memory = mmap.mmap(-1, _MEMORY_BYTES)
    memory[_CODE : _CODE + len(_PROGRAM)] = _PROGRAM
    upper, middle, lower = _TABLES
    for table, entry in ((upper, middle | 0x3), (middle, lower | 0x3), (lower, 0x83)):  # present, writable; 0x80: 2 MiB
        struct.pack_into("=Q", memory, table, entry)
    return memory


def _enter_64_bit_mode(special: bytearray) -> None:
    #                   base, limit, selector, type, present, dpl, db, s, l, g, avl, unusable, padding
    struct.pack_into(_SEGMENT, special, 0, 0, 0xFFFFFFFF, 8, 11, 1, 0, 0, 1, 1, 1, 0, 0, 0)
    for offset in _DATA_SEGMENTS:
        struct.pack_into(_SEGMENT, special, offset, 0, 0xFFFFFFFF, 16, 3, 1, 0, 1, 1, 0, 1, 0, 0, 0)
    paging_and_protection, pae_and_sse, long_mode = 0x80050033, 0x620, 0x500
    struct.pack_into("=4Q", special, _CONTROL_REGISTERS, paging_and_protection, 0, _TABLES[0], pae_and_sse)
    struct.pack_into("=Q", special, _EFER, long_mode)


def _step(name: str, do: Callable[[], Any]) -> Any:
    try:
        return do()
    except OSError as error:
        raise OSError(error.errno, f"{name} on {DEVICE}: {error.strerror}") from error


if __name__ == "__main__":
    try:
        run_guest()
    except (OSError, RuntimeError) as problem:
        sys.exit(str(problem))
