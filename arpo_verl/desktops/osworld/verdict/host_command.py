"""The sandbox host's command line, for bubblewrap: what evaluating processes see of this machine.

They see the system's programs and this Python's packages, read-only; no home, no folder of a run or of tasks, no
environment, no network. The host keeps the rights to give each sandbox its own namespaces; a sandbox keeps none.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from arpo_verl.desktops.embedded import users
from arpo_verl.desktops.embedded.fork_server import InMemory
from arpo_verl.lib import bubblewrap
from arpo_verl.lib.bubblewrap import PACKAGE, SYSTEM, Profile, python_folders, read_only

# Programs need these to start, and libraries to work; none of it is secret.
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
"""The only folder that a sandbox can write to, in memory. It is not `/tmp`: this Python may be installed below that."""
EASYOCR = "/opt/easyocr"
_START = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve({control})"
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": f"{SCRATCH}/home",
    "TMPDIR": SCRATCH,
    "XDG_CACHE_HOME": f"{SCRATCH}/home/.cache",
    "NUMBA_CACHE_DIR": f"{SCRATCH}/home/.cache",
    "MPLCONFIGDIR": f"{SCRATCH}/home/.cache",
    # One thread, since the host forks, and sandboxes run side by side.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # The guest is behind the sandbox's own loopback ports, which no proxy reaches.
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    # cv2's own limit is 2^30 pixels.
    "OPENCV_IO_MAX_IMAGE_PIXELS": str(1 << 27),
    "EASYOCR_MODULE_PATH": EASYOCR,
}


def command(control_fd: int, _: InMemory) -> list[str]:
    """Return the command line that starts a sandbox host.

    Args:
        control_fd: the descriptor that the host inherits and reads the worker's requests from.
    """
    module = f"{__package__}.sandbox"
    start = _START.format(path=_python_path(), module=module, control=control_fd)
    environment = {**_ENVIRONMENT, **{name: os.environ[name] for name in ("TZ",) if name in os.environ}}
    own_users = users.available_ids() is None
    # Without root it is root only in its namespace; without that it would not own its process namespace.
    kept = ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", *(() if own_users else ("CAP_SETUID", "CAP_SETGID"))]
    mounts = [*_mounts(), "--remount-ro", "/"]
    profile = Profile(mounts, own_users, kept, hostname="sandbox", is_process_1=True, environment=environment)
    return bubblewrap.command(profile, [sys.executable, "-I", "-B", "-X", "utf8", "-c", start])


def _mounts() -> list[str]:
    """Return the options for visible folders. Later mounts cover earlier ones."""
    words = [*bubblewrap.system(), *bubblewrap.memory(SCRATCH, "1777", 1 << 20)]
    folders = [*STATE, *python_folders([str(PACKAGE), *filter(_is_pythons, sys.path)])]
    if not any(Path(folder).is_relative_to("/tmp") for folder in folders):  # noqa: S108  in there
        words += ["--symlink", SCRATCH, "/tmp"]  # noqa: S108
    words += bubblewrap.folders(bubblewrap.parents([*folders, f"{EASYOCR}/model"], (*SYSTEM, SCRATCH)))
    words += [word for path in folders for word in read_only(path)]
    # Empty and read-only: if we are not root, a sandbox runs as its owner's user and would leave files there.
    return [*words, *bubblewrap.sealed(str(PACKAGE / "tasks")), "--ro-bind-try", _easyocr_models(), EASYOCR]


def _easyocr_models() -> str:
    """Return where easyocr keeps its models, since a sandbox cannot download them."""
    return os.environ.get("EASYOCR_MODULE_PATH") or os.path.expanduser("~/.EasyOCR")


def _python_path() -> list[str]:
    """Return this process's `sys.path` without folders that do not belong to Python, such as a working folder."""
    kept = [path for path in sys.path if _is_pythons(path)]
    return list(dict.fromkeys([str(PACKAGE.parent), *kept]))


def _is_pythons(path: str) -> bool:
    """Return whether it holds Python's own modules or installed packages, also those of `pip install --target`."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    return (
        bool({"site-packages", "dist-packages"} & set(Path(path).parts))
        or any(Path(path).is_relative_to(prefix) for prefix in prefixes)
        or (path != "" and any(Path(path).glob("*.dist-info")))
    )
