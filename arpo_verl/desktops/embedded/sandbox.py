"""What a desktop's programs see of this machine, and their user: the command line of their sandbox.

Model output is typed into real terminals, so every program in there counts as hostile. It sees the system's programs
and this Python read-only, memory to write to, its own processes and its own loopback. It sees no host file to write to,
no home of the host, no network, and no task, evaluator or expert of this package. It runs as an unprivileged user: if
we are root, as one that nobody else uses; otherwise as the caller, in a user namespace, without any privilege. System
calls that no program needs are refused (`seccomp`).

bubblewrap makes a template once for this process, and `guest/template.py` forks each sandbox from that, with its own
namespaces, memory and limits.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from arpo_verl.desktops.embedded import chrome, packages, seccomp, users
from arpo_verl.desktops.embedded.fork_server import ForkServer
from arpo_verl.desktops.embedded.process import lasting_thread
from arpo_verl.errors import MissingDependencyError
from arpo_verl.lib import bubblewrap
from arpo_verl.lib.bubblewrap import PACKAGE, SYSTEM, Profile, python_folders, read_only
from arpo_verl.versions import install_extra, pip_install

GUEST = Path(__file__).with_name("guest")
GUEST_ROOT = "/opt/arpo"
PROGRAMS = GUEST / "programs"
"""Programs of the desktop that replace the system's, or come in addition."""
# import name -> what pip calls it
GUEST_MODULES = {
    "PIL": "pillow",
    "Xlib": "python-xlib==0.33",
    "pyautogui": "pyautogui",
    "pyscreeze": "pyscreeze",
    "pytweening": "pytweening",
}
MIB = 1 << 20
# Programs need this read-only state to start, or to start fast; `fontconfig` saves GTK programs a second.
ETC, HOSTS = "/etc", "/etc/hosts"
STATE = (ETC, "/var/cache/fontconfig", "/var/lib/dpkg", "/var/lib/libreoffice", "/var/lib/xkb", "/opt/google")


class Memory(NamedTuple):
    """Limits of what may be written to a folder. A file takes about 1 KiB of the kernel's memory beside its bytes."""

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
"""A desktop's terminals, of 3,072 that all desktops of a machine share."""
# Limits of all System V objects: X's programs pass pictures in shared memory; no program here has queues.
SYSTEM_V = {
    "shmmax": 256 * MIB,
    "shmall": 256 * MIB // os.sysconf("SC_PAGE_SIZE"),
    "shmmni": 1024,
    "sem": "250 32000 32 128",
    "msgmni": 32,
}
_USER_ID_IN_NAMESPACE = 1000

_START = "import sys; sys.path[:0] = {path!r}; from arpo_guest.template import main; main({control}, {walls!r})"


def command(control_fd: int, in_memory: Callable[[bytes], int], extra_read_only: Sequence[str]) -> list[str]:
    """Return the command line that starts a template.

    Args:
        control_fd: the descriptor that the child inherits and reads the host's requests from.
        in_memory: makes a file of these bytes and returns its descriptor, which the child inherits.
        extra_read_only: further folders of the host that desktops' programs may read, such as `/opt/some-program`.

    Raises:
        MissingDependencyError: a Python package that the guest needs is not installed.
    """
    paths = _python_paths()
    shown = [*extra_read_only, *python_folders(paths)]
    start = _START.format(path=[GUEST_ROOT, *paths], control=control_fd, walls=_walls(shown))
    own_files = _own_files() | ({} if is_own_user() else identity(_USER_ID_IN_NAMESPACE))
    mounts = _mounts(shown)
    for name, content in own_files.items():
        mounts += ["--perms", "0755", "--ro-bind-data", str(in_memory(content.encode())), name]
    mounts += ["--remount-ro", "/", "--remount-ro", ETC]
    # To make namespaces; each sandbox drops them before it runs. Without root it is root only in its namespace, the
    # caller outside; in its forks' namespaces it becomes another user.
    kept = ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_SETPCAP"]
    kept += ["CAP_SETUID", "CAP_SETGID"] if is_own_user() else ["CAP_SETFCAP"]
    profile = Profile(mounts, not is_own_user(), kept, hostname="desktop", is_process_1=True)
    return bubblewrap.command(profile, [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", start])


def is_own_user() -> bool:
    """Return whether each desktop runs as its own user of this machine."""
    return users.available_ids() is not None


def _walls(shown: Sequence[str]) -> dict[str, Any]:
    """Return the walls of each sandbox of the template, see `guest/template.py: Walls`."""
    return {
        "memory": {path: f"mode=1777,size={m.mib}m,nr_inodes={m.files}" for path, m in WRITABLE.items()},
        "visible": sorted((path for path in shown if any(Path(path).is_relative_to(w) for w in WRITABLE)), key=len),
        "terminals": f"newinstance,ptmxmode=0666,mode=620,max={MAX_TERMINALS}",
        "system_v": {name: str(value) for name, value in SYSTEM_V.items()},
        "user_id": None if is_own_user() else _USER_ID_IN_NAMESPACE,
        "seccomp": seccomp.filter_program().hex() if seccomp.is_supported() else "",
    }


def _mounts(extra: Sequence[str]) -> list[str]:
    """Return the options for visible folders. Later mounts cover earlier ones."""
    folders = [*STATE, *extra]
    above = bubblewrap.parents(
        [*(f"{path}/x" for path in WRITABLE), *folders, f"{GUEST_ROOT}/bin/python"], (*SYSTEM, "/dev")
    )
    words = [*bubblewrap.system(), *bubblewrap.folders(above)]
    words += [word for path in folders for word in (_etc() if path == ETC else read_only(path))]
    if any(PACKAGE.is_relative_to(path) for path in (*SYSTEM, *folders)):
        words += ["--tmpfs", str(PACKAGE)]  # the tasks' evaluators and their expert
    words += ["--ro-bind", str(GUEST), f"{GUEST_ROOT}/arpo_guest"]
    return words + chrome.mounts(f"{GUEST_ROOT}/chrome")


def _etc() -> list[str]:
    """Show the host's `/etc`, or each of its entries if it has no `hosts` file that ours can cover."""
    if os.path.exists(HOSTS):
        return read_only(ETC)
    entries = (read_only(f"{ETC}/{name}") for name in sorted(os.listdir(ETC)))
    return [*bubblewrap.memory(ETC, "0755"), *(word for entry in entries for word in entry)]


def identity(user_id: int) -> dict[str, str]:
    """Return the files that define the users."""
    return {
        "/etc/passwd": (
            "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            f"user:x:{user_id}:{user_id}:user,,,:/home/user:/bin/bash\n"
        ),
        "/etc/group": f"root:x:0:\ntty:x:5:\nnogroup:x:65534:\nuser:x:{user_id}:\n",
    }


def _own_files() -> dict[str, str]:
    """Return files that differ from the host's: our programs, `python` with this interpreter's packages."""
    python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    return {
        HOSTS: "127.0.0.1 localhost desktop\n::1 localhost\n",
        f"{GUEST_ROOT}/bin/python": python,
        f"{GUEST_ROOT}/bin/python3": python,
        **{f"{GUEST_ROOT}/bin/{program.name}": program.read_text() for program in sorted(PROGRAMS.iterdir())},
    }


def _python_paths() -> list[str]:
    """Return the folders on `sys.path` that hold the guest's packages.

    Raises:
        MissingDependencyError: one is not installed.
    """
    paths: dict[str, None] = {}
    for module, package in GUEST_MODULES.items():
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            bare = pip_install("pyautogui", "pyscreeze", "pytweening", options=["--no-deps"])
            remedy = f"{install_extra('desktop')} && {bare}"
            raise MissingDependencyError(f"the embedded desktop needs the Python package {package}; run: {remedy}")
        parent = Path(spec.origin).parent
        paths[str(parent.parent if spec.submodule_search_locations else parent)] = None
    return list(paths)


# --- The template ----------------------------------------------------------------------------------------------------

_templates: weakref.WeakValueDictionary[tuple[int, bool, tuple[str, ...]], ForkServer] = weakref.WeakValueDictionary()


def template_for(extra_read_only: Sequence[str]) -> ForkServer:
    """Return this process's template that shows these folders; it starts with its first user and ends with its last.

    Each of its forks is a sandbox's first process, which gets a control channel, one for connections, and a log.

    Raises:
        MissingDependencyError: a program or a Python package is not installed.
    """
    return lasting_thread("desktop-template").submit(_template_for, tuple(extra_read_only)).result()


def _template_for(extra_read_only: tuple[str, ...]) -> ForkServer:
    key = os.getpid(), is_own_user(), extra_read_only
    template = _templates.get(key)
    if template is None or not template.is_alive():
        if missing := packages.missing_packages(packages.BASE):
            raise MissingDependencyError(
                f"the embedded desktop needs {', '.join(packages.BASE[name] for name in missing)}; "
                f"run: {packages.install_command(missing)}"
            )
        start = functools.partial(command, extra_read_only=extra_read_only)
        template = _templates[key] = ForkServer("the desktop's sandbox", start)
    return template
