"""The command line of every sandbox: a `Profile` says what its programs see of this machine, and what they may do.

Four parts of this package run what they do not trust, each with its own profile: desktops
(`desktops/embedded/sandbox.py`), evaluators (`verdict/host_command.py`), a harness's program
(`agent/harness/command.py`) and QEMU (`desktops/vm/machine.py`). All have processes, System V objects and a host name
of their own, no environment of ours, and end with this process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import arpo_verl

PACKAGE = Path(arpo_verl.__file__).parent
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
USER_NAMESPACES = (
    "this machine does not let us make the desktop's sandbox. Without root, bubblewrap needs user namespaces: as root "
    "run `sysctl -w kernel.unprivileged_userns_clone=1` (Debian), "
    "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu 23.10 and newer) or "
    "`sysctl -w user.max_user_namespaces=15000` (RHEL). In Docker, run the container with `--cap-add SYS_ADMIN "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined`, "
    "or `--privileged`"
)


@dataclass(frozen=True)
class Profile:
    """What a sandbox's first program sees and may do; it gives up the rest itself
    (`desktops/embedded/guest/privileges.py`)."""

    mounts: Sequence[str]
    """Options of the functions below. Later mounts cover earlier ones."""
    own_users: bool
    """Whether it gets a user namespace, which we need unless we are root; there it is root if it keeps capabilities."""
    capabilities: Sequence[str] = ()
    """What it keeps of root's rights, to make namespaces for its forks or to become another user."""
    network: bool = False
    """Whether it has this machine's network; else one of its own, with nothing in it."""
    hostname: str = ""
    """Its host name; empty, this machine's."""
    is_process_1: bool = False
    """Whether it is process 1 of its namespace; else bubblewrap is, and the program is its child."""
    environment: Mapping[str, str] = field(default_factory=dict)
    seccomp_fd: int | None = None
    """A descriptor of its filter of system calls, where the program does not set one itself."""
    folder: str = "/"
    """Its working folder."""


def command(profile: Profile, program: Sequence[str]) -> list[str]:
    """Return the command line that runs `program`, with its arguments, in a new sandbox."""
    user = []
    if profile.own_users:
        user = ["--unshare-user", *(("--uid", "0", "--gid", "0") if profile.capabilities else ())]
    return [
        *("bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"),
        *(() if profile.network else ("--unshare-net",)),
        *(("--hostname", profile.hostname) if profile.hostname else ()),
        *("--die-with-parent", "--new-session", *(("--as-pid-1",) if profile.is_process_1 else ()), "--clearenv"),
        *(*user, "--cap-drop", "ALL", *(word for name in profile.capabilities for word in ("--cap-add", name))),
        *(word for name, value in profile.environment.items() for word in ("--setenv", name, value)),
        *(() if profile.seccomp_fd is None else ("--seccomp", str(profile.seccomp_fd))),
        # The folder of devices is memory without a bound.
        *(*profile.mounts, "--remount-ro", "/dev", "--chdir", profile.folder),
        *program,
    ]


def system() -> list[str]:
    """Show the system's programs, and processes and devices of the sandbox's own."""
    return [*(word for path in SYSTEM for word in read_only(path)), "--proc", "/proc", "--dev", "/dev"]


def read_only(path: str) -> list[str]:
    """Show `path` as it is on the host, if it exists: a link such as `/bin` stays one."""
    if os.path.islink(path):
        return ["--symlink", os.readlink(path), path]
    return ["--ro-bind-try", path, path]


def memory(path: str, mode: str, size: int | None = None) -> list[str]:
    """Mount empty memory of at most `size` bytes."""
    return ["--perms", mode, *(() if size is None else ("--size", str(size))), "--tmpfs", path]


def no_terminals() -> list[str]:
    """Have no terminals: they use kernel memory, and the whole machine shares 3,072."""
    return sealed("/dev/pts")


def sealed(path: str) -> list[str]:
    """Cover a folder with an empty one that nobody can write to."""
    return ["--tmpfs", path, "--remount-ro", path]


def folders(paths: Iterable[str]) -> list[str]:
    """Make folders that every user may enter; bubblewrap makes missing parents for its own user only."""
    return [word for path in paths for word in ("--perms", "0755", "--dir", path)]


def parents(paths: Iterable[str], made: Iterable[str]) -> list[str]:
    """Return every folder above `paths` that is not in one of `made`, except the root, the upper ones first."""
    above = {str(parent) for path in paths for parent in list(Path(path).parents)[:-1]}
    return sorted((path for path in above if not any(Path(path).is_relative_to(m) for m in made)), key=len)


def python_folders(paths: Sequence[str]) -> list[str]:
    """Return the folders that this Python needs to run: its installations, and `paths`, each once."""
    executable = Path(sys.executable)
    wanted = [sys.base_prefix, sys.prefix, *paths, str(executable.parent), str(executable.resolve().parent)]
    shown: list[str] = []
    for folder in sorted(set(map(os.path.realpath, wanted)) | set(wanted), key=len):
        covered = any(Path(folder).is_relative_to(other) for other in (*SYSTEM, *shown))
        if not covered:
            shown.append(folder)
    return shown
