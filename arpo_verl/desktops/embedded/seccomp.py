"""A filter that refuses system calls that no program of a desktop needs, before the kernel's own code for them runs.

A desktop's programs have no privileges, but they could reach a kernel's bugs without them: through io_uring, user
namespaces, rare socket families and the like. `bwrap --seccomp` and `prctl(PR_SET_SECCOMP)` take `filter_program`. It
lists what is refused; a list of what is allowed would break programs with each of their releases.

Chromium runs without its own sandbox, which needs user namespaces: that protects the user's files from web pages, but
in a desktop the policy owns both. A debugger's ptrace stays allowed: it reaches only the desktop's own programs.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable

# Each call's number on x86-64 and on 64-bit ARM; None if a processor lacks it.
Numbers = tuple[int | None, int | None]
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of `Numbers`, and AUDIT_ARCH of linux/audit.h."""

# A kernel may be built without these, so programs can do without them too.
ABSENT: dict[str, Numbers] = {
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    **{"userfaultfd": (323, 282), "perf_event_open": (298, 241), "memfd_secret": (447, 447)},
    # Keys outlive their makers, and so a desktop: keyrings are kept by user.
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"mq_open": (240, 180), "mq_unlink": (241, 181)},
    # A filter cannot see its flags, which are in memory; C libraries fall back to `clone`.
    "clone3": (435, 435),
    **{"open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431)},
    **{"fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467)},
    **{"process_madvise": (440, 440), "pidfd_getfd": (438, 438), "modify_ldt": (154, None)},
    **{"quotactl": (179, 60), "quotactl_fd": (443, 443), "lookup_dcookie": (212, 18), "uselib": (134, None)},
}
# Memory that no process maps: where no control group counts it, nothing does, and the kernel kills others for it.
UNMAPPED: dict[str, Numbers] = {"memfd_create": (319, 279), "shmget": (29, 194)}
# Only privileged programs may make these calls.
FORBIDDEN: dict[str, Numbers] = {
    **{"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268)},
    **{"bpf": (321, 280), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "syslog": (103, 116)},
    **{"name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106)},
    **{"kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89)},
    **{"swapon": (167, 224), "swapoff": (168, 225), "iopl": (172, None), "ioperm": (173, None)},
    **{"settimeofday": (164, 170), "clock_settime": (227, 112), "vhangup": (153, 58)},
    **{"sethostname": (170, 161), "setdomainname": (171, 162)},
}
# These are refused for some arguments.
CLONE: Numbers = (56, 220)
UNSHARE: Numbers = (272, 97)
SOCKET: Numbers = (41, 198)
SOCKETPAIR: Numbers = (53, 199)
PERSONALITY: Numbers = (135, 92)
PRLIMIT64: Numbers = (302, 261)
SETPRIORITY: Numbers = (141, 140)
IOPRIO_SET: Numbers = (251, 30)
SCHED_SETPARAM: Numbers = (142, 118)
SCHED_SETSCHEDULER: Numbers = (144, 119)
SCHED_SETAFFINITY: Numbers = (203, 122)
SCHED_SETATTR: Numbers = (314, 274)

CONNECT: Numbers = (42, 203)
SENDTO: Numbers = (44, 206)
SENDMSG: Numbers = (46, 211)
SENDMMSG: Numbers = (307, 269)

NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
NEW_TIME = 0x80  # of `unshare` alone: in `clone` these bits are a signal's
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_STREAM, _KINDS = 1, 0xF
"""SOCK_STREAM, and the bits of a socket's type that are not flags."""
_FAST_OPEN = 0x20000000
"""MSG_FASTOPEN, with which sending also connects."""
_PROTOCOLS = (0, 1, 6, 17, 58)
"""Protocols of the internet's families: any, ICMP, TCP, UDP, ICMPv6. Others, such as SCTP, would load modules."""
_PERSONALITIES = (0, 0x40000, 0xFFFFFFFF)
"""The usual one, the same without random addresses (for debuggers), and the question for the current one."""
_X32 = 0x40000000

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JSET|K, BPF_RET|K
_AND = 0x54  # BPF_ALU|AND|K
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data

_Code = list[tuple[int, int, int, int]]


def is_supported(machine: str | None = None) -> bool:
    """Return whether there is a filter for this processor, or for `machine`, a name of `platform.machine()`."""
    return (machine or platform.machine()) in _MACHINES


def filter_program(machine: str | None = None, only_listens: bool = False, maps_memory: bool = False) -> bytes:
    """Return the filter as an array of `struct sock_filter`, for this processor or one of `platform.machine()`'s names.

    Args:
        only_listens: the program only serves ports of its network: it may make only TCP sockets of IPv4, and these may
            not connect.
        maps_memory: the program may take only memory that it maps: where no control group bounds it, we look at that.

    Raises:
        KeyError: there is no filter for the processor; ask `is_supported` first.
    """
    column, arch = _MACHINES[machine or platform.machine()]

    def when(numbers: Numbers, code: _Code) -> _Code:
        """Run `code`, which returns, for the call with that number."""
        number = numbers[column]
        return [] if number is None else [(_EQUAL, 0, len(code), number), *code]

    code: _Code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), _refuse(errno.ENOSYS), (_LOAD, 0, 0, _NUMBER)]
    if column == 0:  # another ABI has the same numbers again
        code += [(_ANY_BIT, 0, 1, _X32), _refuse(errno.ENOSYS)]
    absent = {**ABSENT, **UNMAPPED} if maps_memory else ABSENT
    for table, error in ((absent, errno.ENOSYS), (FORBIDDEN, errno.EPERM)):
        for numbers in table.values():
            code += when(numbers, [_refuse(error)])
    code += when(CLONE, _refuse_bits(NEW_NAMESPACES))
    code += when(UNSHARE, _refuse_bits(NEW_NAMESPACES | NEW_TIME))
    code += when(PERSONALITY, [_argument(0), *_only(_PERSONALITIES, errno.EPERM)])
    # Process 1 has the same user, and a reward program inherits its limits and how it is scheduled.
    for numbers in (PRLIMIT64, SCHED_SETPARAM, SCHED_SETSCHEDULER, SCHED_SETAFFINITY, SCHED_SETATTR):
        code += when(numbers, _not_process_1(0))
    # By user or by group they would reach process 1 too.
    for numbers, one_process in ((SETPRIORITY, 0), (IOPRIO_SET, 1)):
        one = [_argument(0), (_EQUAL, 1, 0, one_process), _refuse(errno.EPERM)]
        code += when(numbers, [*one, *_not_process_1(1)])
    code += when(SOCKETPAIR, [_argument(0), *_only((_UNIX,), errno.EAFNOSUPPORT)])
    code += when(SOCKET, _listening() if only_listens else _socket())
    if only_listens:
        code += when(CONNECT, [_refuse(errno.EPERM)])
        for sending, flags in ((SENDTO, 3), (SENDMSG, 2), (SENDMMSG, 3)):
            code += when(sending, _refuse_bits(_FAST_OPEN, flags))
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _socket() -> _Code:
    internet = [_argument(2), *_only(_PROTOCOLS, errno.EPROTONOSUPPORT)]
    routes = [_argument(2), *_only((0,), errno.EPROTONOSUPPORT)]  # NETLINK_ROUTE, by which programs list interfaces
    return [
        _argument(0),
        *((_EQUAL, 0, 1, _UNIX), (_RETURN, 0, 0, _ALLOW)),
        *((_EQUAL, 1, 0, _INET), (_EQUAL, 0, len(internet), _INET6), *internet),
        *((_EQUAL, 0, len(routes), _NETLINK), *routes),
        _refuse(errno.EAFNOSUPPORT),
    ]


def _listening() -> _Code:
    kind = [_argument(1), (_AND, 0, 0, _KINDS), (_EQUAL, 1, 0, _STREAM), _refuse(errno.EAFNOSUPPORT)]
    protocol = [_argument(2), *_only((0, 6), errno.EPROTONOSUPPORT)]
    return [_argument(0), (_EQUAL, 1, 0, _INET), _refuse(errno.EAFNOSUPPORT), *kind, *protocol]


def _argument(index: int) -> tuple[int, int, int, int]:
    """Load the low half, since these calls read only that."""
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * index)


def _only(values: Iterable[int], error: int) -> _Code:
    allow = [step for value in values for step in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))]
    return [*allow, _refuse(error)]


def _not_process_1(argument: int) -> _Code:
    return [_argument(argument), (_EQUAL, 0, 1, 1), _refuse(errno.EPERM), (_RETURN, 0, 0, _ALLOW)]


def _refuse_bits(bits: int, argument: int = 0) -> _Code:
    return [_argument(argument), (_ANY_BIT, 0, 1, bits), _refuse(errno.EPERM), (_RETURN, 0, 0, _ALLOW)]


def _refuse(error: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERRNO | error)
