"""The image that OSWorld's Docker provider asks for, made of what is installed here: Debian's packages, this Python and
the embedded desktop's guest. Nothing is downloaded."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from arpo_verl.desktops.embedded import packages, sandbox
from arpo_verl.desktops.embedded.guest import layout
from arpo_verl.desktops.osworld.docker_containers import IMAGE

GUEST_MAIN = Path(__file__).with_name("guest_main.py")
GUEST_PACKAGES = (
    *(*packages.BASE, "xterm", "x11-utils", "x11-apps", "l3afpad"),
    *("bash", "coreutils", "dash", "grep", "gzip", "sed", "iptables"),
)
"""What the desktop and the tests' task work with, a shell's tools, and the filter that OSWorld's image has."""
PATHS = f"{sandbox.GUEST_ROOT}:{sandbox.GUEST_ROOT}/modules"
MODULES = ("PIL", "pillow.libs", "Xlib", "six.py", "pyautogui", "pyscreeze", "pytweening")
# What packages' installation made, and no package lists.
MADE = (
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/usr/lib/x86_64-linux-gnu/gdk-pixbuf-2.0",
    "/usr/lib/x86_64-linux-gnu/gtk-3.0",
    "/usr/share/applications/mimeinfo.cache",
    "/usr/share/glib-2.0/schemas/gschemas.compiled",
    "/usr/sbin/iptables",
    "/usr/share/mime",
    "/var/cache/fontconfig",
    "/var/lib/xkb",
)
LEFT_OUT = re.compile(
    r"^/usr/share/(?!doc-)(doc|man|locale|info|lintian|bug|help|iso-codes|ghostscript|poppler|icons)/"
    r"|^/usr/lib/python3|\.a$|/libLLVM|/libz3|/dri/|^/etc/(shadow|gshadow|ssh)|^/usr/share/xml/iso-codes"
)
LEFT_OUT_OF_PYTHON = {"test", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "dist-packages"}
LINKS = ("/bin", "/sbin", "/lib", "/lib64")
EMPTY = ("proc", "sys", "dev", "root")
WRITABLE = ("home", "tmp", "run", "var/tmp", "dev/shm")
PASSWD = "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user,,,:/home/user:/bin/bash\n"
GROUP = "root:x:0:\nuser:x:1000:\n"


def load_image(client: Any, tree: Path) -> None:
    """Give the engine the image, made of the archive `tree`."""
    changes = [
        f"ENTRYPOINT {json.dumps(guest_command())}",
        "EXPOSE 5000 8006 8080 9222",
        f"ENV PYTHONPATH={PATHS}",
        f"ENV PATH={layout.PATH}",
    ]
    with tree.open("rb") as stream:
        client.api.import_image(stream, repository=IMAGE, tag="latest", changes=changes)


def guest_command() -> list[str]:
    """What process 1 of the container runs."""
    return [_python(), "-B", "-X", "utf8", f"{sandbox.GUEST_ROOT}/guest_main.py"]


def write_tree(
    archive: Path, names: Iterable[str] = GUEST_PACKAGES, extra_files: Iterable[tuple[str, str]] = ()
) -> None:
    """Write the image's root as a tar archive.

    Args:
        archive: the file to write.
        names: Debian packages, installed here; what they depend on goes along.
        extra_files: further files, each (its place here, its place in the image).
    """
    with tarfile.open(archive, "w") as tar:
        python = f'#!/bin/sh\nexec {_python()} "$@"\n'
        texts = {"/etc/passwd": PASSWD, "/etc/group": GROUP}
        texts |= {f"{sandbox.GUEST_ROOT}/bin/{name}": python for name in ("python", "python3")}
        for name, mode in {**dict.fromkeys(WRITABLE, 0o1777), **dict.fromkeys(EMPTY, 0o755)}.items():
            _add_folder(tar, name, mode)
        for name, text in texts.items():
            _add_text(tar, name, text)
        files = {path: path for path in (*LINKS, *_system_files(names)) if not LEFT_OUT.search(path)}
        files |= {target: source for source, target in (*_python_files(), *_guest_files(), *extra_files)}
        for target, source in files.items():
            if target not in texts and target.lstrip("/") not in (*WRITABLE, *EMPTY):
                _add(tar, source, target)


def _python() -> str:
    return os.path.realpath(sys.executable)


def _system_files(names: Iterable[str]) -> Iterator[str]:
    """Files and folders of installed packages, of what they depend on, and of what their installation made."""
    listed = _run("dpkg-query", "--listfiles", *sorted(_with_dependencies(names)))
    for path in listed.splitlines():
        if path.startswith("/") and path != "/.":
            real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))  # /bin is /usr/bin
            if os.path.lexists(real) and real not in LINKS:
                yield real
    for root in MADE:
        yield from _below(root)


def _with_dependencies(names: Iterable[str]) -> set[str]:
    """Those of `names` that are installed, and what they depend on."""
    fields = "${Package}\t${db:Status-Status}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    needs: dict[str, list[list[str]]] = {}
    providers: dict[str, str] = {}
    for line in _run("dpkg-query", "--show", f"--showformat={fields}").splitlines():
        name, status, depends, provides = line.split("\t")
        if status == "installed":
            needs[name] = [_names(alternatives, "|") for alternatives in depends.split(",")]
            providers |= dict.fromkeys(_names(provides, ","), name)
    found: set[str] = set()
    waiting = [name for name in names if name in needs]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            for alternatives in needs[name]:
                there = [providers.get(one, one) if one not in needs else one for one in alternatives]
                waiting += [one for one in there if one in needs][:1]
    return found


def _names(listing: str, separator: str) -> list[str]:
    return [re.split(r"[\s:(]", entry.strip())[0] for entry in listing.split(separator) if entry.strip()]


def _python_files() -> Iterator[tuple[str, str]]:
    """This interpreter and its standard library, where they lie here; the guest's packages."""
    libraries = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    shared = os.path.join(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME") or "")
    for root in (_python(), *libraries, *([shared] if os.path.isfile(shared) else [])):
        for path in _below(root, LEFT_OUT_OF_PYTHON):
            yield path, path
    for module in MODULES:
        site = Path(sysconfig.get_path("purelib"))
        for path in _below(str(site / module)):
            yield path, f"{sandbox.GUEST_ROOT}/modules/{os.path.relpath(path, site)}"


def _guest_files() -> Iterator[tuple[str, str]]:
    yield str(GUEST_MAIN), f"{sandbox.GUEST_ROOT}/guest_main.py"
    for path in _below(str(sandbox.GUEST)):
        yield path, f"{sandbox.GUEST_ROOT}/arpo_guest/{os.path.relpath(path, sandbox.GUEST)}"
    for program in sandbox.PROGRAMS.iterdir():
        yield str(program), f"{sandbox.GUEST_ROOT}/bin/{program.name}"


def _below(root: str, left_out: Iterable[str] = ()) -> Iterator[str]:
    if os.path.lexists(root):
        yield root
    if os.path.isdir(root) and not os.path.islink(root):
        for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
            if entry.name not in {"__pycache__", *left_out}:
                yield from _below(entry.path, left_out)


def _add(tar: tarfile.TarFile, source: str, target: str) -> None:
    def as_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        if target.startswith(sandbox.GUEST_ROOT):
            info.mode |= 0o555  # the guest's user reads what another user checked out
        return info

    tar.add(source, target.lstrip("/"), recursive=False, filter=as_root)


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    tar.addfile(info)


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name.lstrip("/"))
    content = text.encode()
    info.size, info.mode = len(content), 0o755
    tar.addfile(info, io.BytesIO(content))


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
