"""System calls that a desktop's programs are refused: each is tried from inside, and the filter is read as the kernel
does."""

from __future__ import annotations

import ctypes
import errno
import json
import platform
import shlex
import struct

import pytest

from arpo_verl.desktops.embedded import seccomp

ALLOWED = "allowed"
CALLS = {
    **{name: (numbers, errno.ENOSYS) for name, numbers in seccomp.ABSENT.items()},
    **{name: (numbers, errno.EPERM) for name, numbers in seccomp.FORBIDDEN.items()},
}
ON_PROCESS = ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")
CONDITIONAL = {
    name: getattr(seccomp, name.upper())
    for name in ("clone", "unshare", "socket", "socketpair", "personality", "setpriority", "ioprio_set", *ON_PROCESS)
}
SENDING = {name: getattr(seccomp, name.upper()) for name in ("connect", "sendto", "sendmsg", "sendmmsg")}
NEWUSER, SIGCHLD = 0x10000000, 17
# call, its arguments -> what the filter says
CASES = [
    ("clone", (0x1200000 | SIGCHLD,), ALLOWED),  # glibc's fork
    ("clone", (0x3D0F00,), ALLOWED),  # a thread
    *(("clone", (1 << bit | SIGCHLD,), errno.EPERM) for bit in (17, *range(25, 31))),
    ("unshare", (0x600,), ALLOWED),  # files and working directory
    *(("unshare", (bits,), errno.EPERM) for bits in (NEWUSER, 0x20000, 0x80, NEWUSER | 0x40000000)),
    *(("socket", (family, 1, 0), ALLOWED) for family in (1, 2, 10)),
    *(
        ("socket", (family, kind, protocol), ALLOWED)
        for family in (2, 10)
        for kind, protocol in ((1, 6), (2, 17), (2, 1))
    ),
    *(("socket", (2, 1, protocol), errno.EPROTONOSUPPORT) for protocol in (33, 132, 136, 262)),
    ("socket", (16, 3, 0), ALLOWED),
    *(("socket", (16, 3, protocol), errno.EPROTONOSUPPORT) for protocol in (4, 6, 12, 15, 16, 21)),
    *(("socket", (family, 1, 0), errno.EAFNOSUPPORT) for family in range(46) if family not in (1, 2, 10, 16)),
    ("socketpair", (1, 1, 0), ALLOWED),
    *(("socketpair", (family, 1, 0), errno.EAFNOSUPPORT) for family in (2, 16, 30, 40)),
    *(("personality", (value,), ALLOWED) for value in (0, 0x40000, 0xFFFFFFFF)),
    *(("personality", (value,), errno.EPERM) for value in (8, 0x0400000, 0x100000)),
    *((name, (process,), ALLOWED) for name in ON_PROCESS for process in (0, 2, 101)),
    *((name, (process,), errno.EPERM) for name in ON_PROCESS for process in (1, 0x100000001)),
    *(
        (name, (which, process, 19), ALLOWED if (which, process) in ((one, 0), (one, 7)) else errno.EPERM)
        for name, one in (("setpriority", 0), ("ioprio_set", 1))
        for which in range(4)
        for process in (0, 1, 7)
    ),
]
MACHINES = [("x86_64", 0, 0xC000003E), ("aarch64", 1, 0xC00000B7)]


def verdict(program, arch, number, arguments=()):
    """What the kernel's interpreter would return for a call."""
    data = struct.pack("=iIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    code, at, accumulator = list(struct.iter_unpack("=HBBI", program)), 0, 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif operation == 0x06:
            return ALLOWED if operand == 0x7FFF0000 else operand & 0xFFFF
        elif operation == 0x54:
            accumulator &= operand
        else:
            held = accumulator == operand if operation == 0x15 else {0x45: accumulator & operand}[operation]
            at += if_true if held else if_false


@pytest.mark.parametrize("machine, column, arch", MACHINES)
def test_filter_refuses_what_its_table_says_and_nothing_else(machine, column, arch):
    program = seccomp.filter_program(machine)
    refused = {numbers[column]: error for numbers, error in CALLS.values() if numbers[column] is not None}
    conditional = {numbers[column] for numbers in CONDITIONAL.values()}
    for number in set(range(600)) - conditional:
        assert verdict(program, arch, number) == refused.get(number, ALLOWED), number
    for name, arguments, expected in CASES:
        assert verdict(program, arch, CONDITIONAL[name][column], arguments) == expected, (name, arguments)


LISTENING = [
    *(("socket", (2, kind, protocol), ALLOWED) for kind in (1, 1 | 0x80800) for protocol in (0, 6)),
    *(("socket", (family, 1, 0), errno.EAFNOSUPPORT) for family in range(46) if family != 2),
    *(("socket", (2, kind | 0x80800, 0), errno.EAFNOSUPPORT) for kind in (2, 3, 4, 5, 10)),
    ("socket", (2, 1, 132), errno.EPROTONOSUPPORT),
    ("connect", (), errno.EPERM),
    *((name, (0, 0, 0, 0x4000), ALLOWED) for name in ("sendto", "sendmmsg")),
    *((name, (0, 0, 0, 0x20004000), errno.EPERM) for name in ("sendto", "sendmmsg")),
    ("sendmsg", (0, 0, 0x4000), ALLOWED),
    ("sendmsg", (0, 0, 0x20004000), errno.EPERM),
]


@pytest.mark.parametrize("machine, column, arch", MACHINES)
def test_who_only_listens_connects_nowhere(machine, column, arch):
    program = seccomp.filter_program(machine, only_listens=True)
    for name, arguments, expected in LISTENING:
        number = getattr(seccomp, name.upper())[column]
        assert verdict(program, arch, number, arguments) == expected, (name, arguments)
    assert verdict(program, arch, seccomp.ABSENT["io_uring_setup"][column]) == errno.ENOSYS


@pytest.mark.parametrize("machine, column, arch", MACHINES)
def test_who_maps_its_memory_has_no_other(machine, column, arch):
    program = seccomp.filter_program(machine, maps_memory=True)
    assert {verdict(program, arch, numbers[column]) for numbers in seccomp.UNMAPPED.values()} == {errno.ENOSYS}


@pytest.mark.parametrize("machine, column, arch", MACHINES)
def test_another_abi_of_the_processor_is_no_way_around(machine, column, arch):
    program = seccomp.filter_program(machine)
    others = {0x40000003, 0x40000028, *(other for _, _, other in MACHINES)} - {arch}  # i386, 32-bit ARM
    assert {verdict(program, other, 1) for other in others} == {errno.ENOSYS}
    if machine == "x86_64":
        assert {verdict(program, arch, 0x40000000 | number) for number in range(600)} == {errno.ENOSYS}


@pytest.mark.parametrize("machine, column, arch", MACHINES)
def test_numbers_are_those_that_libseccomp_knows(machine, column, arch):
    try:
        resolve = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name_arch
    except OSError:
        pytest.skip("libseccomp is not here")
    found = {}
    for name, numbers in {
        **{name: numbers for name, (numbers, _) in CALLS.items()},
        **CONDITIONAL,
        **SENDING,
        **seccomp.UNMAPPED,
    }.items():
        number = resolve(ctypes.c_uint32(arch), name.encode())
        if number != -1:  # newer than that library
            found[name] = (numbers[column], number if number >= 0 else None)
    assert len(found) > 50 and {name: pair for name, pair in found.items() if pair[0] != pair[1]} == {}


def test_processor_without_a_filter_is_known():
    assert seccomp.is_supported("x86_64") and seccomp.is_supported("aarch64") and not seccomp.is_supported("riscv64")


ATTEMPT = """
import ctypes, json, sys
call = ctypes.CDLL(None, use_errno=True).syscall
errors = []
for number, arguments in json.loads(sys.argv[1]):
    ctypes.set_errno(0)
    errors.append(0 if call(number, *map(ctypes.c_ulong, arguments)) >= 0 else ctypes.get_errno())
print(json.dumps(errors))
"""


@pytest.mark.desktop
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers here are of x86-64")
def test_each_is_refused_inside_a_desktop(jail):
    harmless = (0xFFFFFFFF,) * 6  # where the filter lets one through, the kernel refuses such arguments otherwise
    refused = [(name, numbers[0], harmless, error) for name, (numbers, error) in CALLS.items()]
    refused += [(name, CONDITIONAL[name][0], arguments, error) for name, arguments, error in CASES if error != ALLOWED]
    attempts = json.dumps([(number, arguments) for _, number, arguments, _ in refused])
    errors = json.loads(jail.sh(f"python3 -c {shlex.quote(ATTEMPT)} {shlex.quote(attempts)}"))
    assert [
        (name, arguments, error)
        for (name, _, arguments, expected), error in zip(refused, errors, strict=True)
        if error != expected
    ] == []
    assert jail.sh("grep -h Seccomp: /proc/1/status /proc/self/status").split()[1::2] == ["2", "2"]


@pytest.mark.desktop
@pytest.mark.skipif(platform.machine() != "x86_64", reason="another processor has no such ABI")
def test_the_32_bit_abi_is_refused_inside_a_desktop(jail):
    """`int 0x80` from a 64-bit program: write(1, "out", 3) by its old number."""
    code = "b8040000 00bb0100 0000b900 000000ba 03000000 cd80c3".replace(" ", "")
    source = f"""
import ctypes, mmap
text = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40, 7)
text.write(bytes.fromhex({code!r}))
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(text)))
print(function())
"""
    assert jail.sh(f"python3 -c {shlex.quote(source)}") == str(-errno.ENOSYS)


@pytest.mark.desktop
def test_no_user_namespace_inside_a_desktop(jail):
    assert "Operation not permitted" in jail.sh("unshare --user true")
    assert "Operation not permitted" in jail.sh("unshare --user --map-root-user --mount mount -t tmpfs x /tmp")
