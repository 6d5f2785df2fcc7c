"""The sandbox host's command line, in bubblewrap: what the processes that evaluate see of this machine.

The system's programs and this Python's packages, read-only; no home, no folder of a run or of tasks, no environment, no
network. The host keeps what it needs to give each sandbox namespaces of its own; a sandbox keeps nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from arpo_verl.desktop import users
from arpo_verl.desktop.sandbox import PACKAGE, SYSTEM, python_folders, read_only

# What programs need to start and libraries to work; nothing of it is secret.
STATE = (
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/ssl/certs",
    "/etc/timezone",
    "/var/cache/fontconfig",
)
SCRATCH = "/scratch"
"""In a sandbox: its own memory, and all that it can write to. Not `/tmp`: this Python may be installed below that."""
EASYOCR = "/opt/easyocr"
_START = "import sys; sys.path[:] = {path!r}; from {module} import main; main({control})"
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": f"{SCRATCH}/home",
    "TMPDIR": SCRATCH,
    "XDG_CACHE_HOME": f"{SCRATCH}/home/.cache",
    "NUMBA_CACHE_DIR": f"{SCRATCH}/home/.cache",
    "MPLCONFIGDIR": f"{SCRATCH}/home/.cache",
    # One thread: the host forks, and sandboxes run side by side.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # The guest is on loopback ports of the sandbox's own, which no proxy reaches.
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    # cv2's own bound is 2^30 pixels; a list of files to play is no video.
    "OPENCV_IO_MAX_IMAGE_PIXELS": str(1 << 27),
    "EASYOCR_MODULE_PATH": EASYOCR,
}


def command(control_fd: int) -> list[str]:
    """The command line that starts a sandbox host.

    Args:
        control_fd: descriptor of the worker's requests, as the host inherits it.
    """
    module = f"{__package__}.zygote"
    start = _START.format(path=_python_path(), module=module, control=control_fd)
    environment = {**_ENVIRONMENT, **{name: os.environ[name] for name in ("TZ",) if name in os.environ}}
    return [
        *("bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *("--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
        *_user_options(users.available_ids() is not None),
        *_mounts(),
        *("--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/"),
        *(word for name, value in environment.items() for word in ("--setenv", name, value)),
        *(sys.executable, "-I", "-B", "-X", "utf8", "-c", start),
    ]


def _user_options(root: bool) -> list[str]:
    kept = ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", *(("CAP_SETUID", "CAP_SETGID") if root else ())]
    capabilities = [word for name in kept for word in ("--cap-add", name)]
    # Root of that namespace alone, and the caller outside of it: else its process namespace would not be its own.
    user = [] if root else ["--unshare-user", "--uid", "0", "--gid", "0"]
    return [*user, "--cap-drop", "ALL", *capabilities]


def _mounts() -> list[str]:
    """What is visible. Later mounts lie over earlier ones."""
    words = [word for path in SYSTEM for word in read_only(path)]
    words += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", str(1 << 20), "--tmpfs", SCRATCH]
    folders = [*STATE, *python_folders([str(PACKAGE), *filter(_is_pythons, sys.path)])]
    if not any(Path(folder).is_relative_to("/tmp") for folder in folders):  # noqa: S108  in there
        words += ["--symlink", SCRATCH, "/tmp"]  # noqa: S108
    # bubblewrap makes missing parents for its own user alone; a sandbox's user must pass too.
    for parent in _parents([*folders, f"{EASYOCR}/model"]):
        words += ["--perms", "0755", "--dir", parent]
    words += [word for path in folders for word in read_only(path)]
    tasks = str(PACKAGE / "tasks")
    # Empty, and to nobody's writing: where we are not root a sandbox has its owner's user, and would leave files there.
    words += ["--tmpfs", tasks, "--remount-ro", tasks, "--ro-bind-try", _easyocr_models(), EASYOCR]
    return words


def _parents(paths: list[str]) -> list[str]:
    """Every folder above `paths` but the root and what is there already, the upper ones first."""
    parents = {str(parent) for path in paths for parent in list(Path(path).parents)[:-1]}
    return sorted((p for p in parents if not any(Path(p).is_relative_to(s) for s in (*SYSTEM, SCRATCH))), key=len)


def _easyocr_models() -> str:
    """Where easyocr keeps the models that it downloads, which a sandbox cannot."""
    return os.environ.get("EASYOCR_MODULE_PATH") or os.path.expanduser("~/.EasyOCR")


def _python_path() -> list[str]:
    """This process's `sys.path` without what is not a Python's own: a working folder, say."""
    kept = [path for path in sys.path if _is_pythons(path)]
    return list(dict.fromkeys([str(PACKAGE.parent), *kept]))


def _is_pythons(path: str) -> bool:
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return bool({"site-packages", "dist-packages"} & set(Path(path).parts)) or any(
        Path(path).is_relative_to(prefix) for prefix in prefixes
    )
