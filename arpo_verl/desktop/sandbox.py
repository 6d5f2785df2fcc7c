"""The sandbox of a desktop, as a bubblewrap command line: what its programs see of this machine, and as whom they run.

Model output is typed into real terminals, so a program in there is taken for hostile. It sees the system's programs and
this Python read-only, memory to write to, its own processes and its own loopback; no host file to write to, no home of
the host, no network, and no task, evaluator or expert of this package. It runs as an unprivileged user: where we are
root, as one that nobody else uses; elsewhere as the caller, in a user namespace, without any privilege.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from arpo_verl.desktop import chrome
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
WRITABLE_MIB = {"/home": 512, "/tmp": 256, "/run": 128, "/var/tmp": 64, "/dev/shm": 256}
PACKAGE = Path(__file__).parents[1]
_USER_ID_IN_NAMESPACE = 1000

_START = "import sys; sys.path[:0] = {path!r}; from arpo_guest.init import main; main({control}, {connections}, {user})"


def command(
    control_fd: int,
    connections_fd: int,
    extra_read_only: Sequence[str],
    in_memory: Callable[[bytes], int],
    user_id: int | None,
) -> list[str]:
    """The command line that starts a sandbox.

    Args:
        control_fd: descriptor of the host's commands, as the child inherits it.
        connections_fd: descriptor of the relayed connections, likewise.
        extra_read_only: further folders of the host that its programs may read, such as `/opt/some-program`.
        in_memory: makes a file of these bytes and gives its descriptor, as the child inherits it.
        user_id: the user whom its programs run as; None: the caller, in a user namespace.

    Raises:
        MissingDependencyError: a Python package that the guest needs is not installed.
    """
    paths = _python_paths()
    start = _START.format(path=[GUEST_ROOT, *paths], control=control_fd, connections=connections_fd, user=user_id)
    own_files = _own_files(user_id or _USER_ID_IN_NAMESPACE).items()
    return [
        *("bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--hostname", "desktop", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
        *_user_options(user_id),
        *_mounts([*extra_read_only, *_python_folders(paths)]),
        *(word for name, content in own_files for word in _own_file(name, in_memory(content))),
        *("--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/"),
        *(sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", start),
    ]


def _own_file(name: str, fd: int) -> list[str]:
    return ["--perms", "0755", "--ro-bind-data", str(fd), name]


def _mounts(extra: Sequence[str]) -> list[str]:
    """What is visible. Later mounts lie over earlier ones."""
    words = [word for path in SYSTEM for word in _read_only(path)]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for path, mib in WRITABLE_MIB.items():
        words += ["--perms", "1777", "--size", str(mib * MIB), "--tmpfs", path]
    folders = [*STATE, *extra]
    # bubblewrap makes missing parents for its own user alone; the desktop's user must pass too.
    for parent in _parents([*folders, f"{GUEST_ROOT}/bin/python"]):
        words += ["--perms", "0755", "--dir", parent]
    words += [word for path in folders for word in _read_only(path)]
    if any(PACKAGE.is_relative_to(path) for path in (*SYSTEM, *folders)):
        words += ["--tmpfs", str(PACKAGE)]  # the tasks' evaluators and their expert
    words += ["--ro-bind", str(GUEST), f"{GUEST_ROOT}/arpo_guest"]
    return words + chrome.mounts(f"{GUEST_ROOT}/chrome")


def _parents(paths: Sequence[str]) -> list[str]:
    """Every folder above `paths` but the root and the mounts, the upper ones first."""
    parents = {str(parent) for path in paths for parent in list(Path(path).parents)[:-1]}
    return sorted(parents - {*SYSTEM, *WRITABLE_MIB}, key=len)


def _read_only(path: str) -> list[str]:
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


def _python_folders(paths: Sequence[str]) -> list[str]:
    """What must be visible for this Python to run: its installations, and `paths`; no more than once each."""
    executable = Path(sys.executable)
    wanted = [sys.base_prefix, sys.prefix, *paths, str(executable.parent), str(executable.resolve().parent)]
    folders: list[str] = []
    for folder in sorted(set(map(os.path.realpath, wanted)) | set(wanted), key=len):
        covered = any(Path(folder).is_relative_to(other) for other in (*SYSTEM, *folders))
        if not covered:
            folders.append(folder)
    return folders
