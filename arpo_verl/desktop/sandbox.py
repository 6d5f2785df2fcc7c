"""The sandbox of a desktop, as a command line: what its programs see of this machine, and as whom they run.

Model output is typed into real terminals, so a program in there is taken for hostile. It sees the system's programs and
this Python read-only, memory to write to, its own processes and its own loopback; no host file to write to, no home of
the host, no network, and no task, evaluator or expert of this package. It runs as an unprivileged user: where we are
root, as one that nobody else uses; elsewhere as the caller, in a user namespace, without any privilege. System calls
that none needs are refused (`seccomp`).

bubblewrap makes it. A line of shell that becomes bubblewrap does first what that has no option for: limits of System V
objects, of files in memory and of terminals, which are kernel memory that all desktops of a machine share.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from arpo_verl.desktop import chrome, seccomp
from arpo_verl.errors import MissingDependencyError

GUEST = Path(__file__).with_name("guest")
GUEST_ROOT = "/opt/arpo"
PROGRAMS = GUEST / "programs"
"""Programs that the desktop has in the place of the system's, or beside them."""
# import name -> what pip calls it
GUEST_MODULES = {
    "PIL": "pillow",
    "Xlib": "python-xlib==0.33",
    "pyautogui": "pyautogui",
    "pyscreeze": "pyscreeze",
    "pytweening": "pytweening",
}
MIB = 1 << 20
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Read-only state that programs need to start, or to start fast; `fontconfig` saves GTK programs a second.
STATE = ("/etc", "/var/cache/fontconfig", "/var/lib/dpkg", "/var/lib/libreoffice", "/var/lib/xkb", "/opt/google")


class Memory(NamedTuple):
    """What may be written to a folder. A file takes about 1 KiB of the kernel's memory besides its bytes."""

    mib: int
    files: int


WRITABLE = {
    "/home": Memory(512, 100_000),
    "/tmp": Memory(256, 50_000),
    "/run": Memory(128, 20_000),
    "/var/tmp": Memory(64, 20_000),
    "/dev/shm": Memory(256, 10_000),
}
MAX_TERMINALS = 64
"""Of 3,072 that all desktops of a machine share."""
# System V objects in all: X's programs pass pictures in segments of shared memory; nothing here has queues.
SYSTEM_V = {
    "shmmax": 256 * MIB,
    "shmall": 256 * MIB // os.sysconf("SC_PAGE_SIZE"),
    "shmmni": 1024,
    "sem": "250 32000 32 128",
    "msgmni": 32,
}
_BESIDE = "/sys"
"""Where the memory for the folders is mounted for bubblewrap to find it: the sandbox has nothing of that name."""
PACKAGE = Path(__file__).parents[1]
_USER_ID_IN_NAMESPACE = 1000

_START = "import sys; sys.path[:0] = {path!r}; from arpo_guest.init import main; main({arguments})"


def command(
    control_fd: int,
    connections_fd: int,
    extra_read_only: Sequence[str],
    in_memory: Callable[[bytes], int],
    user_id: int | None,
    pids: int,
    doors: Sequence[Path] = (),
    data_bytes: int | None = None,
) -> list[str]:
    """The command line that starts a sandbox, in the process that runs it.

    Args:
        control_fd: descriptor of the host's commands, as the child inherits it.
        connections_fd: descriptor of the relayed connections, likewise.
        extra_read_only: further folders of the host that its programs may read, such as `/opt/some-program`.
        in_memory: makes a file of these bytes and gives its descriptor, as the child inherits it.
        user_id: the user whom its programs run as; None: the caller, in a user namespace.
        pids: processes and threads that they may be.
        doors: `cgroup.procs` of the groups that they run in.
        data_bytes: memory that each program may have of its own, where no group bounds that of all.

    Raises:
        MissingDependencyError: a Python package that the guest needs is not installed.
    """
    paths = _python_paths()
    arguments = f"{control_fd}, {connections_fd}, {user_id}, {pids}, {data_bytes}"
    start = _START.format(path=[GUEST_ROOT, *paths], arguments=arguments)
    own_files = _own_files(user_id or _USER_ID_IN_NAMESPACE).items()
    prepared = can_prepare(user_id is None)
    return [
        *_preparation(doors, user_id is None, prepared),
        *("--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--hostname", "desktop", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
        *(("--seccomp", str(in_memory(seccomp.filter_program()))) if seccomp.is_supported() else ()),
        *_user_options(user_id),
        *_mounts([*extra_read_only, *python_folders(paths)], prepared),
        *(word for name, content in own_files for word in _own_file(name, in_memory(content))),
        *("--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/"),
        *(sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", start),
    ]


def _preparation(doors: Sequence[Path], user_namespace: bool, can_mount: bool) -> list[str]:
    """The words before bubblewrap's options: what is done in its process before it starts."""
    lines = [f"echo 0 > {shlex.quote(str(door))}" for door in doors]
    # When the machine's memory runs out, the kernel takes a desktop, not the trainer. What root says can't be unsaid.
    lines += ["{ echo 500 > /proc/self/oom_score_adj; } 2> /dev/null || :"]
    if can_mount:
        lines += [f"mount -t tmpfs -o mode=755,size=1m desktop {_BESIDE}"]
        for path, memory in WRITABLE.items():
            options = f"mode=1777,nosuid,nodev,size={memory.mib}m,nr_inodes={memory.files}"
            lines += [f"mkdir -p {_BESIDE}{path}", f"mount -t tmpfs -o {options} desktop {_BESIDE}{path}"]
        options = f"newinstance,nosuid,noexec,ptmxmode=0666,mode=620,max={MAX_TERMINALS}"
        lines += [f"mkdir {_BESIDE}/pts", f"mount -t devpts -o {options} desktop {_BESIDE}/pts"]
        # Not every kernel lets a user namespace's root set these; a container may have them read-only.
        lines += [f"{{ echo {n} > /proc/sys/kernel/{name}; }} 2> /dev/null || :" for name, n in SYSTEM_V.items()]
    words = [*(_unshare(user_namespace) if can_mount else ()), "sh", "-ec", "\n".join([*lines, 'exec "$@"']), "sh"]
    return [*words, "bwrap", *(() if can_mount else ("--unshare-ipc",))]


@functools.cache
def can_prepare(user_namespace: bool) -> bool:
    """Whether we may mount before bubblewrap does; else limits are missing. AppArmor may let it alone do so."""
    trial = [*_unshare(user_namespace), "mount", "-t", "tmpfs", "desktop", _BESIDE]
    try:
        return subprocess.run(trial, capture_output=True).returncode == 0
    except OSError:
        return False


def _unshare(user_namespace: bool) -> list[str]:
    return ["unshare", "--mount", "--ipc", *(("--user", "--map-root-user") if user_namespace else ())]


def _own_file(name: str, fd: int) -> list[str]:
    return ["--perms", "0755", "--ro-bind-data", str(fd), name]


def _mounts(extra: Sequence[str], prepared: bool) -> list[str]:
    """What is visible. Later mounts lie over earlier ones."""
    words = [word for path in SYSTEM for word in read_only(path)]
    words += ["--proc", "/proc", "--dev", "/dev"]
    if prepared:
        words += ["--perms", "0755", "--dir", "/var"]
        words += [word for path in WRITABLE for word in ("--bind", f"{_BESIDE}{path}", path)]
        words += ["--dev-bind", f"{_BESIDE}/pts", "/dev/pts"]
    else:
        for path, memory in WRITABLE.items():
            words += ["--perms", "1777", "--size", str(memory.mib * MIB), "--tmpfs", path]
    folders = [*STATE, *extra]
    # bubblewrap makes missing parents for its own user alone; the desktop's user must pass too.
    for parent in _parents([*folders, f"{GUEST_ROOT}/bin/python"]):
        words += ["--perms", "0755", "--dir", parent]
    words += [word for path in folders for word in read_only(path)]
    if any(PACKAGE.is_relative_to(path) for path in (*SYSTEM, *folders)):
        words += ["--tmpfs", str(PACKAGE)]  # the tasks' evaluators and their expert
    words += ["--ro-bind", str(GUEST), f"{GUEST_ROOT}/arpo_guest"]
    return words + chrome.mounts(f"{GUEST_ROOT}/chrome")


def _parents(paths: Sequence[str]) -> list[str]:
    """Every folder above `paths` but the root and the mounts, the upper ones first."""
    parents = {str(parent) for path in paths for parent in list(Path(path).parents)[:-1]}
    return sorted(parents - {*SYSTEM, *WRITABLE}, key=len)


def read_only(path: str) -> list[str]:
    """Show `path` as it is on the host: a link such as `/bin` stays one."""
    if os.path.islink(path):
        return ["--symlink", os.readlink(path), path]
    return ["--ro-bind-try", path, path]


def _user_options(user_id: int | None) -> list[str]:
    if user_id is None:
        same = str(_USER_ID_IN_NAMESPACE)
        return ["--unshare-user", "--uid", same, "--gid", same]
    # Process 1 keeps just enough to become that user, and loses it by doing so.
    return ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


def _own_files(user_id: int) -> dict[str, bytes]:
    """Files that differ from the host's: who the users are, our programs, `python` with this interpreter's packages."""
    python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode()
    return {
        "/etc/passwd": (
            "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            f"user:x:{user_id}:{user_id}:user,,,:/home/user:/bin/bash\n"
        ).encode(),
        "/etc/group": f"root:x:0:\ntty:x:5:\nnogroup:x:65534:\nuser:x:{user_id}:\n".encode(),
        "/etc/hosts": b"127.0.0.1 localhost desktop\n::1 localhost\n",
        f"{GUEST_ROOT}/bin/python": python,
        f"{GUEST_ROOT}/bin/python3": python,
        **{f"{GUEST_ROOT}/bin/{program.name}": program.read_bytes() for program in sorted(PROGRAMS.iterdir())},
    }


def _python_paths() -> list[str]:
    """Folders on `sys.path` that hold the guest's packages.

    Raises:
        MissingDependencyError: one is not installed.
    """
    paths: dict[str, None] = {}
    for module, package in GUEST_MODULES.items():
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            remedy = "pip install python-xlib==0.33 && pip install --no-deps pyautogui pyscreeze pytweening"
            raise MissingDependencyError(f"the embedded desktop needs the Python package {package}; run: {remedy}")
        parent = Path(spec.origin).parent
        paths[str(parent.parent if spec.submodule_search_locations else parent)] = None
    return list(paths)


def python_folders(paths: Sequence[str]) -> list[str]:
    """What must be visible for this Python to run: its installations, and `paths`; no more than once each."""
    executable = Path(sys.executable)
    wanted = [sys.base_prefix, sys.prefix, *paths, str(executable.parent), str(executable.resolve().parent)]
    folders: list[str] = []
    for folder in sorted(set(map(os.path.realpath, wanted)) | set(wanted), key=len):
        covered = any(Path(folder).is_relative_to(other) for other in (*SYSTEM, *folders))
        if not covered:
            folders.append(folder)
    return folders
