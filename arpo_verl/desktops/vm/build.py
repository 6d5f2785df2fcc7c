"""`arpo-verl vm build` makes a machine's image of Debian's packages and the embedded desktop's guest server.

mmdebstrap installs the packages, without root if user namespaces are allowed; genext2fs makes a file system of the
result. Both write the same bytes for the same packages, and a snapshot of Debian's archive has the same packages for
ever. The manifest beside the disk names them.
"""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import subprocess
import tarfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from arpo_verl.desktops.embedded import chrome, packages, sandbox
from arpo_verl.desktops.vm import image
from arpo_verl.errors import ArpoError, ConfigError, MissingDependencyError
from arpo_verl.lib.files import replacing_directory
from arpo_verl.versions import pip_install

logger = logging.getLogger(__name__)

SUITE = "bookworm"
ARCHIVE, SECURITY = "http://deb.debian.org/debian", "http://deb.debian.org/debian-security"
SNAPSHOTS = "http://snapshot.debian.org/archive"
SYSTEM = (
    *("systemd-sysv", "systemd-timesyncd", "udev", "dbus", "kmod", "linux-image-cloud-amd64", "initramfs-tools"),
    *("qemu-guest-agent", "python3", "python-is-python3", "python3-pil", "python3-xlib", "ca-certificates", "bash"),
)
"""Debian packages for booting and for the guest server. The desktop's programs come from `desktop.packages`."""
_PURE = ("pyautogui", "pyscreeze", "pytweening")
"""Python packages of the guest that Debian does not have; they are copied from this Python."""
_NEVER = ("bubblewrap",)
_BLOCK = 4096
_FREE_MIB = 2048
"""Free room on the disk; the image's file grows only as it is written."""

_FILES = {
    "etc/hostname": "desktop\n",
    "etc/hosts": "127.0.0.1 localhost desktop\n::1 localhost\n",
    "etc/fstab": "/dev/sda / ext4 errors=continue 0 0\n",
    # QEMU's user network has this address for its one machine.
    "etc/systemd/network/eth0.network": "[Match]\nName=eth0\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n"
    "DNS=10.0.2.3\nLinkLocalAddressing=no\n",
    "etc/initramfs-tools/conf.d/arpo": "MODULES=list\nBUSYBOX=n\nCOMPRESS=gzip\n",
    "etc/initramfs-tools/modules": "virtio_pci\nvirtio_scsi\nsd_mod\n",
    "etc/modules-load.d/arpo.conf": "virtio_net\nvirtio_console\n",
    "etc/systemd/system/arpo-desktop.service": f"""\
[Unit]
Description=Desktop and OSWorld's guest server
After=systemd-networkd.service

[Service]
ExecStart=/usr/bin/python3 -I -B -X utf8 -c "import sys; sys.path.insert(0, '{sandbox.GUEST_ROOT}'); \
from arpo_guest.machine import main; main()"
TemporaryFileSystem={" ".join(f"{path}:mode=1777" for path in sandbox.WRITABLE)}
KillMode=control-group

[Install]
WantedBy=multi-user.target
""",
}
_BROWSER = f"{sandbox.GUEST_ROOT}/chrome"
# As `desktop.chrome` does for a sandbox, this moves the program to another name and links the files beside it.
_CHROME = (
    f"cd {chrome.CHROMIUM} || exit 0; mkdir {_BROWSER}; mv {chrome.PROGRAM} {_BROWSER}/chrome; "
    f"ln -s {chrome.CHROMIUM}/* {_BROWSER}/; ln -s {_BROWSER}/chrome {chrome.PROGRAM}"
)
_MASKED = ("systemd-timesyncd", "apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "fstrim.timer")
_UNITS = ("arpo-desktop", "systemd-networkd")


class BuildError(ArpoError, RuntimeError):
    """The image could not be made, and no part of it is left."""


def build(
    folder: Path, *, osworld: bool = False, suite: str = SUITE, snapshot: str | None = None, extra: Sequence[str] = ()
) -> image.Image:
    """Make an image in `folder`, in the place of an older one.

    Args:
        osworld: also install the programs of OSWorld's own tasks that Debian has, about 1 GB.
        suite: Debian's release.
        snapshot: a time of Debian's archive of snapshots, as `20261101T000000Z`; None takes the packages of today.
        extra: further Debian packages.

    Raises:
        ConfigError: something else is in `folder`, or `snapshot` is no such time.
        MissingDependencyError: a program is not installed.
        BuildError: a package is not available, or the disk is full.
    """
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free and not (folder / image.MANIFEST).is_file():
        raise ConfigError(f"{folder} holds other files than an image; name a new or empty folder, or an image's")
    missing = packages.missing_packages(packages.VM)
    if missing:
        raise MissingDependencyError(
            f"to build an image, install {', '.join(missing)}; {packages.install_command(missing)}"
        )
    names = package_names(osworld, extra)
    epoch = _epoch(snapshot)
    with replacing_directory(folder) as scratch:
        tree = scratch / "tree"
        _write_tree(tree)
        root = scratch / "root.tar"
        started = time.monotonic()
        logger.info("installing %d packages and what they depend on", len(names))
        _run(_mmdebstrap(names, suite, snapshot, tree, scratch, root), epoch)
        logger.info("installed after %.0f s; writing the disk", time.monotonic() - started)
        _make_disk(root, scratch, epoch)
        versions = dict(line.split(" ", 1) for line in (scratch / "versions").read_text().splitlines())
        for path in (root, scratch / "versions"):
            path.unlink()
        shutil.rmtree(tree)
        manifest = {
            "suite": suite,
            "snapshot": snapshot,
            "epoch": epoch,
            "arpo_verl": metadata.version("arpo-verl"),
            "blake2b": {name: image.digest(scratch / name) for name in (image.DISK, image.KERNEL, image.INITRD)},
            "packages": versions,
        }
        (scratch / image.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return image.Image.at(folder / image.DISK)


def package_names(osworld: bool, extra: Sequence[str] = ()) -> list[str]:
    """Return the names of the packages to install; Debian adds those that they depend on."""
    wanted = {**packages.BASE, **packages.TASKS, **(packages.OSWORLD if osworld else {})}
    return sorted({*SYSTEM, *wanted, *extra} - {*_NEVER})


def _epoch(snapshot: str | None) -> int:
    """Return the one time that all of the image's files get, so that every build has the same bytes."""
    if snapshot is None:
        return 1_700_000_000
    try:
        time_of = datetime.strptime(snapshot, "%Y%m%dT%H%M%SZ")
    except ValueError as error:
        raise ConfigError(f"--snapshot must be a time as 20261101T000000Z, got {snapshot!r}") from error
    return int(time_of.replace(tzinfo=UTC).timestamp())


def _sources(suite: str, snapshot: str | None) -> list[str]:
    archive, security = ARCHIVE, SECURITY
    if snapshot is not None:
        archive, security = f"{SNAPSHOTS}/debian/{snapshot}", f"{SNAPSHOTS}/debian-security/{snapshot}"
    trust = "" if snapshot is None else "[check-valid-until=no] "
    named = ((archive, suite), (archive, f"{suite}-updates"), (security, f"{suite}-security"))
    return [f"deb {trust}{place} {name} main" for place, name in named]


def _mmdebstrap(names: Sequence[str], suite: str, snapshot: str | None, tree: Path, out: Path, root: Path) -> list[str]:
    outside = {name: shlex.quote(str(out / name)) for name in ("versions", image.KERNEL, image.INITRD)}
    hooks = {
        # These files must be there before the kernel's package makes its first file system.
        "essential": (f"sync-in {shlex.quote(str(tree))} /",),
        "customize": (
            'chroot "$1" useradd --create-home --shell /bin/bash --uid 1000 user',
            f'chroot "$1" sh -ec {shlex.quote(_CHROME)}',
            f'chroot "$1" systemctl enable {" ".join(_UNITS)}',
            f'chroot "$1" systemctl mask {" ".join(_MASKED)}',
            'chroot "$1" dpkg-query --show --showformat "\\${Package} \\${Version}\\n" > "$1/versions"',
            'mv "$1"/boot/vmlinuz-* "$1/kernel"; mv "$1"/boot/initrd.img-* "$1/initrd"',
            f"download /versions {outside['versions']}",
            f"download /kernel {outside[image.KERNEL]}",
            f"download /initrd {outside[image.INITRD]}",
            'rm -rf "$1"/versions "$1"/kernel "$1"/initrd "$1"/vmlinuz* "$1"/initrd.img* "$1"/boot/*',
            'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/log/* "$1"/var/cache/ldconfig',
        ),
    }
    left_out = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
    return [
        *("mmdebstrap", "--variant=minbase", "--format=tar", f"--include={','.join(names)}"),
        *(f"--dpkgopt=path-exclude={path}" for path in left_out),
        *(f"--{stage}-hook={line}" for stage, lines in hooks.items() for line in lines),
        *(suite, str(root), *_sources(suite, snapshot)),
    ]


def _write_tree(tree: Path) -> None:
    """Write the files that the image has beside Debian's packages."""
    for name, text in _FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    without = shutil.ignore_patterns("__pycache__")
    home = tree / sandbox.GUEST_ROOT.lstrip("/")
    shutil.copytree(sandbox.GUEST, home / "arpo_guest", ignore=without)
    shutil.copytree(sandbox.PROGRAMS, home / "bin")
    for program in (home / "bin").iterdir():
        program.chmod(0o755)
    modules = tree / "usr/lib/python3/dist-packages"
    for name in _PURE:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise MissingDependencyError(
                f"the Python package {name} is not installed; run: {pip_install(name, options=['--no-deps'])}"
            )
        shutil.copytree(Path(spec.origin).parent, modules / name, ignore=without)


def _make_disk(root: Path, folder: Path, epoch: int) -> None:
    """Make a disk without partitions from the archive `root`."""
    with tarfile.open(root) as archive:
        used = sum(-(-member.size // _BLOCK) + 1 for member in archive)
    blocks = used * 21 // 20 + (_FREE_MIB << 20) // _BLOCK
    raw = folder / "disk.raw"
    shape = ["-B", str(_BLOCK), "-b", str(blocks), "-i", "16384", "-m", "0", "-z"]
    _run(["genext2fs", *shape, "-a", str(root), str(raw)], epoch)
    _run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(folder / image.DISK)], epoch)
    raw.unlink()


def _run(command: Sequence[str], epoch: int) -> None:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{command[0]} failed ({done.returncode}): {done.stderr.strip()[-3000:]}")
