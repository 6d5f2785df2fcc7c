"""List and install the embedded desktop's Debian and Ubuntu packages, with the standard library only:

python packages.py list [osworld|docker|vm]       every package, one a line
python packages.py missing [osworld|docker|vm]    those that are not installed
python packages.py install [osworld|docker|vm]    install the missing ones; without root or sudo, print how, and fail

`osworld` adds the programs of OSWorld's own tasks; the shipped tasks need none of them. `docker` adds what the tests of
Docker desktops need to start their own engine, and a virtual machine in it. `vm` adds what the provider `qemu` and
`arpo-verl vm build` need.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable

# package -> a program that it brings, or a path that exists once it is installed
BASE = {
    "bubblewrap": "bwrap",
    "xvfb": "Xvfb",
    "x11-xkb-utils": "xkbcomp",
    "openbox": "openbox",
    "dbus": "dbus-daemon",
    "wmctrl": "wmctrl",
    "xdotool": "xdotool",
    "xdg-utils": "xdg-open",
    "desktop-file-utils": "update-desktop-database",
    "shared-mime-info": "update-mime-database",
    "libglib2.0-bin": "gsettings",
    "fonts-dejavu-core": "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
    "util-linux": "ipcrm",
    "procps": "pgrep",
}
"""A desktop needs these to boot and to speak OSWorld's protocol."""

TASKS: dict[str, str] = {
    "xterm": "xterm",
    "x11-apps": "xcalc",
    "x11-utils": "xprop",
    "zenity": "zenity",
    "yad": "yad",
    "l3afpad": "l3afpad",
    "mousepad": "mousepad",
    "pcmanfm": "pcmanfm",
    "galculator": "galculator",
    "dconf-gsettings-backend": "/usr/libexec/dconf-service",
    "xclip": "xclip",
    "socat": "socat",
}
"""The shipped tasks use these. If you write a task, add its programs here."""

ACCESSIBILITY: dict[str, str] = {
    "at-spi2-core": "/usr/libexec/at-spi-bus-launcher",
    "gir1.2-atspi-2.0": "/usr/share/doc/gir1.2-atspi-2.0",
    "python3-gi": "/usr/lib/python3/dist-packages/gi",
}
"""The tree of accessible objects needs these."""

OSWORLD: dict[str, str] = {
    "gimp": "gimp",
    "vlc": "vlc",
    "gnome-terminal": "gnome-terminal",
    "gsettings-desktop-schemas": "/usr/share/glib-2.0/schemas/org.gnome.desktop.interface.gschema.xml",
    "gnome-settings-daemon-common": "/usr/share/glib-2.0/schemas/org.gnome.settings-daemon.plugins.power.gschema.xml",
    "gnome-shell-common": "/usr/share/glib-2.0/schemas/org.gnome.shell.gschema.xml",
    "pulseaudio": "pulseaudio",
    "pulseaudio-utils": "pactl",
    "bc": "bc",
    "chromium": "chromium",
    "libreoffice-calc": "localc",
    "libreoffice-impress": "loimpress",
    "libreoffice-writer": "lowriter",
    "libreoffice-gtk3": "/usr/lib/libreoffice/program/libvclplug_gtk3lo.so",
    **ACCESSIBILITY,
}
"""OSWorld's own tasks use these programs, about 1 GB; Debian lacks some others."""

DOCKER: dict[str, str] = {
    "docker.io": "dockerd",
    "iptables": "iptables",
    "iproute2": "ip",
    "qemu-system-x86": "qemu-system-x86_64",
    "qemu-utils": "qemu-img",
    "e2fsprogs": "/usr/sbin/mkfs.ext4",
}
"""The tests of Docker desktops start their own engine with these, and a virtual machine in it."""

VM: dict[str, str] = {
    "qemu-system-x86": "qemu-system-x86_64",
    "qemu-utils": "qemu-img",
    "ovmf": "/usr/share/OVMF/OVMF_CODE_4M.fd",
    "mmdebstrap": "mmdebstrap",
    "genext2fs": "genext2fs",
}
"""The provider `qemu` and `arpo-verl vm build` need these."""

# program -> its Debian package, or None; not those above, nor programs that are called as their package
OTHERS: dict[str, str | None] = {
    "code": None,
    "dbus-launch": "dbus-x11",
    "dconf": "dconf-cli",
    "google-chrome": "chromium",
    "gnome-terminal-server": "gnome-terminal",
    "import": "imagemagick",
    "libreoffice": "libreoffice-calc",
    "notify-send": "libnotify-bin",
    "rox": "rox-filer",
    "soffice": "libreoffice-calc",
    "xclock": "x11-apps",
    "xwininfo": "x11-utils",
    "x-terminal-emulator": "gnome-terminal",
}


def package_of(program: str) -> str | None:
    """Return the Debian package that brings a program; None if Debian has none."""
    named = {name: package for group in (BASE, TASKS, OSWORLD) for package, name in group.items()}
    return OTHERS[program] if program in OTHERS else named.get(program, program)


def missing_packages(packages: dict[str, str] | None = None) -> list[str]:
    """Return the packages whose program is not installed; of `BASE` and `TASKS` by default, in the order above."""
    packages = {**BASE, **TASKS} if packages is None else packages
    return [package for package, program in packages.items() if not _installed(program)]


def install_command(packages: Iterable[str]) -> str:
    """Return the command that installs `packages` on Debian and Ubuntu."""
    return f"apt-get install -y --no-install-recommends {' '.join(packages)}"


def _installed(program: str) -> bool:
    return os.path.exists(program) if os.path.isabs(program) else shutil.which(program) is not None


def _install(packages: dict[str, str]) -> int:
    """Install what is missing; return the exit status."""
    missing = missing_packages(packages)
    if importlib.util.find_spec("ensurepip") is None:  # Debian's own Python cannot make environments without it
        missing.append("python3-venv")
    if not missing:
        return 0
    if shutil.which("apt-get") is None:
        print(f"this is not Debian or Ubuntu: install the equivalents of {' '.join(missing)}", file=sys.stderr)
        return 1
    prefix = _privilege()
    if prefix is None:
        command = f"sudo apt-get update && sudo {install_command(missing)}"
        print(f"the embedded desktop needs Debian packages; as root, run:\n  {command}", file=sys.stderr)
        return 1
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*prefix, "apt-get", "update", "-q"], env=environment, check=False)
    return subprocess.run([*prefix, *install_command(missing).split()], env=environment, check=False).returncode


def _privilege() -> list[str] | None:
    """Return a command prefix that becomes root without asking, or None."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n", "--preserve-env=DEBIAN_FRONTEND"]
    return None


def main(arguments: list[str]) -> int:
    """Run one of the commands of this module's docstring."""
    command, *groups = arguments or [""]
    if command not in ("list", "missing", "install") or groups not in ([], ["osworld"], ["docker"], ["vm"]):
        print(__doc__, file=sys.stderr)
        return 2
    packages = {**BASE, **TASKS, **{"osworld": OSWORLD, "docker": DOCKER, "vm": VM}.get("".join(groups), {})}
    if command == "install":
        return _install(packages)
    print("\n".join(missing_packages(packages) if command == "missing" else packages))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
