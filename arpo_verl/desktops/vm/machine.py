"""A virtual machine is a QEMU process in a sandbox, controlled by QMP. It ends with the process that started it.

A policy controls the guest, so the guest may have broken into QEMU. QEMU therefore runs in bubblewrap, without the
files of this host, with the image and the template read-only, and with its own filter of system calls. If we are root,
it runs as a user of its own. The guest's network has one way in, from this host's loopback to three of the guest's
ports. QEMU itself answers the guest's DHCP, ARP and ping, and nothing goes further. QEMU shares the host's network, so
the sandbox refuses the calls by which it would make a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import re
import select
import shlex
import shutil
import socket
import stat
import subprocess
import time
import weakref
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from arpo_verl.desktops.config import VmConfig
from arpo_verl.desktops.embedded import cgroups, seccomp, users
from arpo_verl.desktops.embedded.process import in_memory, start_sandbox
from arpo_verl.desktops.machine_provider import GUEST_PORTS, Ended
from arpo_verl.desktops.vm.events import DISK_ERROR, Events
from arpo_verl.desktops.vm.image import Image
from arpo_verl.errors import ConfigError, DesktopBootError, MissingDependencyError
from arpo_verl.lib import bubblewrap, relay
from arpo_verl.lib.files import ScratchFolder
from arpo_verl.lib.relay import HOST
from arpo_verl.types import Size
from arpo_verl.versions import install_extra

if TYPE_CHECKING:
    from qemu.qmp import QMPClient

logger = logging.getLogger(__name__)
# Its faults are raised as exceptions too; a QEMU that its guest broke into could fill the log with anything.
_qmp_logger = logging.getLogger("qemu.qmp")
if _qmp_logger.level == logging.NOTSET:
    _qmp_logger.setLevel(logging.CRITICAL)

T = TypeVar("T")

KVM = Path("/dev/kvm")
ANSWER_TIMEOUT_S = 60.0
"""QEMU answers within milliseconds unless the host is overloaded."""
EXIT_TIMEOUT_S = 5.0
DYING_S = 1.0
"""How long to wait for QEMU's end after a connection ended: a dying QEMU closes it before its sandbox is gone."""
OVERHEAD_MIB = 1024
"""QEMU's own memory beside the guest's: devices, code, and an emulated guest's translated code, up to 1 GiB."""
THREADS = 256
FILTERS = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
"""QEMU's own filter of its system calls."""
_TEMPLATE, _WRITABLE = "/template", "/writable"
_MOST_WORDS, _PIPE_BYTES = 2000, 1 << 16
_FORWARD = re.compile(r"^ {1,8}TCP\[HOST_FORWARD\] +\d{1,9} +127\.0\.0\.1 +(\d{1,5}) +[0-9.]{7,15} +(\d{1,5}) ", re.M)


@dataclass(frozen=True)
class Start:
    """A start has QEMU's arguments for the memory and disk of a machine, and the files that the machine sees."""

    words: tuple[str, ...]
    read_only: Mapping[str, Path]
    """Files by their places in the sandbox."""
    writable: Mapping[str, Path] = field(default_factory=dict)


def cold(config: VmConfig, image: Image) -> Start:
    """Return a start that boots the image, and forgets what the machine writes."""
    memory = f"memory-backend-ram,id=memory,size={config.memory_mib}M"
    words = ("-object", memory, *_disks("/image", "/variables", image, "snapshot=on,"))
    return Start(words, image.files)


def for_template(config: VmConfig, image: Image, folder: Path) -> Start:
    """Return a start that boots the image, with the machine's memory and disk in files of `folder`."""
    memory = f"memory-backend-file,id=memory,size={config.memory_mib}M,mem-path={_TEMPLATE}/memory,share=on"
    words = ("-object", memory, *_disks(f"{_TEMPLATE}/disk", f"{_TEMPLATE}/variables", image, ""))
    return Start(words, image.files, {_TEMPLATE: folder})


def clone(config: VmConfig, image: Image, folder: Path) -> Start:
    """Return a start from a template, whose memory and disk are copied where the clone writes to them."""
    where = f"mem-path={_TEMPLATE}/memory,share=off,readonly=on,rom=off"
    memory = f"memory-backend-file,id=memory,size={config.memory_mib}M,{where}"
    words = ("-object", memory, *_disks(f"{_TEMPLATE}/disk", f"{_TEMPLATE}/variables", image, "snapshot=on,"))
    return Start((*words, "-incoming", "defer"), {**image.files, _TEMPLATE: folder})


def _disks(disk: str, variables: str, image: Image, snapshot: str) -> list[str]:
    words = ["-drive", f"if=none,id=disk,format=qcow2,{snapshot}file={disk}"]
    if image.kernel is None:
        words += ["-drive", "if=pflash,unit=0,format=raw,readonly=on,file=/firmware"]
        words += ["-drive", f"if=pflash,unit=1,format=raw,{snapshot}file={variables}"]
    return words


def hardware(config: VmConfig, image: Image, screen: Size) -> list[str]:
    """Return QEMU's arguments for the guest's hardware, which are the same for a template and its clones."""
    processor = "host,migratable=on,-invtsc" if config.accelerator == "kvm" else "max"
    forwards = ",".join(f"hostfwd=tcp:{HOST}:0-:{port}" for port in GUEST_PORTS)
    words = ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-cpu", processor]
    words += ["-machine", f"q35,accel={config.accelerator},memory-backend=memory,vmport=off"]
    words += ["-smp", str(config.cpus), "-m", f"{config.memory_mib}M"]
    # An error of this host's disk must not reach the guest: the guest stops instead.
    disk = "scsi-hd,bus=scsi.0,drive=disk,werror=stop,rerror=stop"
    words += ["-device", "virtio-scsi-pci,id=scsi", "-device", disk]
    words += [
        "-netdev",
        f"user,id=net,restrict=on,ipv6=off,{forwards}",
        "-device",
        "virtio-net-pci,netdev=net,romfile=",
    ]
    words += ["-device", "virtio-rng-pci", "-device", "vmgenid,guid=auto", "-device", "virtio-serial-pci"]
    words += ["-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"]
    words += ["-chardev", "ringbuf,id=console,size=64K", "-serial", "chardev:console"]
    if image.kernel is None:
        size = f"xres={screen.width},yres={screen.height}"
        return [*words, "-device", f"virtio-vga,edid=on,{size}", "-device", "qemu-xhci", "-device", "usb-tablet"]
    line = "root=/dev/sda rw console=ttyS0 quiet net.ifnames=0 fsck.mode=skip mitigations=off"
    # On a host too busy to run it, the kernel would spend its time on warnings about that.
    line += " nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
    line += f" arpo.screen={screen.width}x{screen.height}"
    return [*words, "-vga", "none", "-kernel", "/kernel", "-initrd", "/initrd", "-append", line]


class VirtualMachine:
    """A running QEMU. It always ends with this object, and with the process that holds it."""

    def __init__(self, config: VmConfig, image: Image, screen: Size, start: Start):
        """Start QEMU. The guest's processors run, unless it waits for a template's state.

        Raises:
            MissingDependencyError: QEMU, bubblewrap or the Python package of QMP is not installed.
            DesktopBootError: QEMU does not start.
        """
        try:
            from qemu.qmp import QMPClient
        except ImportError as error:
            raise MissingDependencyError(
                f"the Python package qemu.qmp is not installed ({error}); run: {install_extra('vm')}"
            ) from error
        with contextlib.ExitStack() as inherited, contextlib.ExitStack() as undo:
            self._user = users.claim_user()
            if self._user is not None:
                undo.callback(self._user.close)
            # QEMU needs one processor more than the guest, for the devices.
            limits = cgroups.Limits(config.memory_mib + OVERHEAD_MIB, float(config.cpus) + 1, THREADS)
            self._cgroup = cgroups.Cgroup(limits)
            undo.callback(self._cgroup.close)
            scratch = ScratchFolder(own_folder(config.path / "writable"), "vm-")
            undo.callback(scratch.remove)
            # A pipe bounds QEMU's output, and it closes when the last of QEMU's processes ends.
            log, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._log = undo.enter_context(open(log, "rb", buffering=0))
            output = inherited.enter_context(open(said, "wb", buffering=0))
            self._said = b""
            words = [*hardware(config, image, screen), *start.words]
            ends = []
            passed = []
            for name in ("monitor", "agent"):
                ours, theirs = socket.socketpair()
                ends.append(undo.enter_context(ours))
                passed.append(inherited.enter_context(theirs).fileno())
                words += ["-chardev", f"socket,id={name},fd={passed[-1]}"]
            words += ["-mon", "chardev=monitor,mode=control"]
            seccomp_fd = None
            if seccomp.is_supported():
                seccomp_fd = in_memory("filter", seccomp.filter_program(only_listens=True))
                inherited.callback(os.close, seccomp_fd)
                passed.append(seccomp_fd)
            command = _command(config, start, words, self._cgroup.doors, self._user, scratch.path, seccomp_fd)
            self._process = start_sandbox(command, passed, output)
            undo.pop_all()
        monitor_end, self._agent_end = ends
        self._monitor = QMPClient("monitor")
        self._agents: list[QMPClient] = []
        self._events = self._monitor.events.event_filter = Events(self._process.kill)
        channels = ([self._monitor], self._agents, ends)
        self._finalizer = weakref.finalize(self, _end, self._process, self._log, channels, self._cgroup, self._user)
        try:
            run_async(self._monitor.connect(monitor_end), ANSWER_TIMEOUT_S)
            network = self.ask("human-monitor-command", **{"command-line": "info usernet"})
            forwarded = {int(guest): int(host) for host, guest in _FORWARD.findall(network)}
            self.ports = {port: forwarded[port] for port in GUEST_PORTS}
        except Exception as error:
            last = self.last_words()
            self.close()
            hint = f"; {bubblewrap.USER_NAMESPACES}" if "bwrap:" in last else ""
            raise DesktopBootError(f"QEMU does not start: {error!r}{last}{hint}") from error
        except BaseException:
            self.close()
            raise
        finally:
            scratch.remove()  # QEMU has made its file there, and removed the name
        _alive.add(self)

    @property
    def pid(self) -> int:
        """Id of QEMU's process, the innermost of its sandbox; for measurements."""
        pid = self._process.pid
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pid = int(children[0])
        return pid

    def processor_s(self) -> float:
        """Return the processor time that QEMU and its guest have used, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, command: str, **arguments: Any) -> Any:
        """Return QEMU's answer to a QMP command.

        Raises:
            DesktopBootError: QEMU does not answer, or answers with an error.
        """
        from qemu.qmp import QMPError

        try:
            return run_async(self._monitor.execute(command, arguments or None), ANSWER_TIMEOUT_S)
        except (TimeoutError, QMPError, OSError) as error:
            raise DesktopBootError(f"QEMU refused {command}: {error!r}{self.last_words()}") from error

    def migrate(self, command: str, place: str, timeout_s: float) -> None:
        """Save the device state, without the memory, to a file (`migrate`) or load it from one (`migrate-incoming`).

        Raises:
            DesktopBootError: QEMU failed to do it in time.
        """
        self.ask("migrate-set-capabilities", capabilities=[{"capability": "x-ignore-shared", "state": True}])
        self.ask(command, uri=f"file:{place}")
        deadline = time.monotonic() + timeout_s
        while (state := self.ask("query-migrate")).get("status") != "completed":
            if state.get("status") == "failed" or time.monotonic() > deadline:
                raise DesktopBootError(f"QEMU's {command} failed: {state}{self.last_words()}")
            time.sleep(0.005)

    async def connect_agent(self) -> QMPClient:
        """Return a connection to QEMU's agent in the guest; if none runs, nothing answers. It works once a machine."""
        from qemu.qmp import QMPClient

        client = QMPClient("agent")
        client.await_greeting = client.negotiate = False
        self._agents.append(client)
        await client.connect(self._agent_end)
        return client

    def is_alive(self) -> bool:
        """Return whether QEMU runs."""
        return self._process.poll() is None

    def why_gone(self) -> str:
        """Return how the machine ended; empty while it runs."""
        code = self._process.poll()
        if code is None:
            return ""
        if (ended := self._events.why_down()) and ended.is_proof:
            return ended.cause
        if refused := self._events.first(DISK_ERROR):
            return f"a disk of this host failed: {refused.get('reason')}"
        return f"its QEMU ended with {code}{self.last_words()}"

    def why_down(self) -> Ended | None:
        """Return, after a fault, what the guest's programs did to end the machine; None if nothing shows that."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(DYING_S)
        if not self.is_alive():
            with contextlib.suppress(Exception):  # QEMU's last event may not have been read yet
                run_async(self._await_silence(), 1.0)
        return self._events.why_down()

    async def _await_silence(self) -> None:
        from qemu.qmp import Runstate

        while self._monitor.runstate is Runstate.RUNNING:
            await asyncio.sleep(0.01)

    def console(self) -> str:
        """Return the last output of the guest's kernel and services, which may be anything."""
        with contextlib.suppress(DesktopBootError):
            return str(self.ask("ringbuf-read", device="console", size=65536))
        return ""

    def last_words(self) -> str:
        """Return QEMU's last output, for the end of a message."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        if not self._log.closed:
            self._said = (self._said + (self._log.read(_PIPE_BYTES) or b""))[-_MOST_WORDS:]
        words = self._said.decode(errors="replace").strip()
        return f": {words}" if words else ""

    def close(self) -> None:
        """End the machine and wait until it is gone. Safe to call twice."""
        self._finalizer()


def _command(
    config: VmConfig,
    start: Start,
    words: Sequence[str],
    doors: Sequence[Path],
    user: users.UserClaim | None,
    scratch: Path,
    seccomp_fd: int | None = None,
) -> list[str]:
    """Return the command line of QEMU in its sandbox.

    Args:
        scratch: where QEMU makes the file that a disk with `snapshot=on` writes to; it removes the name at once.
        seccomp_fd: the filter of system calls; None where there is none.
    """
    binary = which(config)
    if config.accelerator == "kvm":
        _check_kvm(user)
    require_files(start.read_only.values())
    if user is not None:
        for path in (path for folder in start.writable.values() for path in (folder, *folder.iterdir())):
            os.chown(path, user.user_id, user.user_id, follow_symlinks=False)
        os.chown(scratch, user.user_id, user.user_id)
    lines = [f"echo 0 > {shlex.quote(str(door))}" for door in doors]
    # If this host's memory runs out, the kernel shall end a machine, not the trainer.
    lines += ["{ echo 500 > /proc/self/oom_score_adj; } 2> /dev/null || :"]
    if not start.writable:  # blocks of 512 bytes; a write beyond them fails and ends no process
        lines += [f"trap '' XFSZ\nulimit -f {config.disk_mib * 2048}"]
    # The owner may end before bubblewrap asks to end with it: `setpriv` asks first, and this checks that it was early.
    lines += [f'[ "$PPID" = {os.getpid()} ]', 'exec "$@"']
    command = ["setpriv", "--pdeathsig", "KILL", "sh", "-ec", "\n".join(lines), "sh"]
    mounts, program = bubblewrap.system(), binary
    if not any(binary.is_relative_to(path) for path in bubblewrap.SYSTEM):
        mounts += _installation(binary)
        program = Path("/qemu/bin", binary.name)
    if config.accelerator == "kvm":
        mounts += ["--dev-bind-try", str(KVM), str(KVM)]
    mounts += [word for place, path in start.read_only.items() for word in ("--ro-bind", str(path), place)]
    writable = {**start.writable, _WRITABLE: scratch}
    mounts += [word for place, path in writable.items() for word in ("--bind", str(path), place)]
    mounts += [*bubblewrap.no_terminals(), "--remount-ro", "/"]
    become = []
    if user is not None:
        group = KVM.stat().st_gid if config.accelerator == "kvm" else user.user_id
        become = ["setpriv", "--reuid", str(user.user_id), "--regid", str(user.user_id), "--groups", str(group)]
        become += ["--inh-caps=-all"]
    profile = bubblewrap.Profile(
        mounts,
        own_users=user is None,
        capabilities=() if user is None else ("CAP_SETUID", "CAP_SETGID"),
        network=True,  # for the ways in; its filter refuses the calls that make a connection
        environment={"TMPDIR": _WRITABLE},
        seccomp_fd=seccomp_fd,
    )
    return [*command, *bubblewrap.command(profile, [*become, str(program), *words, "-sandbox", FILTERS])]


def _check_kvm(user: users.UserClaim | None) -> None:
    if not KVM.exists():
        raise MissingDependencyError(f"no {KVM} here; environment.vm.accelerator=tcg does without, ten times slower")
    mode = KVM.stat().st_mode
    if user is not None and mode & 0o060 != 0o060 and mode & 0o006 != 0o006:
        raise ConfigError(
            f"{KVM} must be open to its group, got mode {mode & 0o777:o}: for root, QEMU runs as another user; "
            f"run: chgrp kvm {KVM} && chmod g+rw {KVM}"
        )


def _installation(binary: Path) -> list[str]:
    """Return bubblewrap's arguments to show a QEMU outside the system's folders, and nothing else beside it."""
    prefix = binary.parent.parent
    if binary.parent.name != "bin" or not (prefix / "share" / "qemu").is_dir():
        raise ConfigError(f"environment.vm.binary must be PREFIX/bin/... of an installed QEMU, got {binary}")
    parts = [prefix / name for name in ("bin", "lib", "lib64", "share/qemu", "share/seabios")]
    shown = [path for path in parts if path.is_dir()]
    folders = bubblewrap.folders(("/qemu", "/qemu/share"))
    return folders + [word for path in shown for word in ("--ro-bind", str(path), f"/qemu/{path.relative_to(prefix)}")]


def own_folder(path: Path) -> Path:
    """Make the folder `path` if it is missing, and return it. No other user may change what machines start from.

    Raises:
        ConfigError: `path` is no folder, belongs to another user, or others may write to it.
    """
    try:
        path.mkdir(mode=0o755, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(f"environment.vm.folder: cannot make the folder {path} ({error}); name another") from error
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigError(
            f"environment.vm.folder: {path} must be a folder that belongs to this process's user and that only this "
            "user may write to; name another, or remove this one"
        )
    return path


def which(config: VmConfig) -> Path:
    """Return QEMU's program.

    Raises:
        MissingDependencyError: QEMU is not installed.
    """
    found = shutil.which(config.binary)
    if found is None:
        remedy = "run: apt-get install -y qemu-system-x86 qemu-utils"
        raise MissingDependencyError(f"environment.vm.binary={config.binary} is not installed; {remedy}")
    return Path(os.path.realpath(found))


@functools.cache
def version(binary: Path) -> tuple[int, ...]:
    """Return QEMU's version, as (10, 0, 2).

    Raises:
        ConfigError: the program prints no version.
    """
    done = subprocess.run([binary, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    found = re.search(r"version (\d{1,3})\.(\d{1,3})\.(\d{1,3})", done.stdout)
    if found is None:
        said = (done.stdout + done.stderr).strip()[-500:]
        raise ConfigError(f"environment.vm.binary must be QEMU, got {binary}, which prints for --version: {said!r}")
    return tuple(map(int, found.groups()))


def require_files(paths: Iterable[Path]) -> None:
    """Check that the files exist that a machine starts from.

    Raises:
        MissingDependencyError: files are missing, which it names.
    """
    if missing := [str(path) for path in paths if not path.exists()]:
        raise MissingDependencyError(f"no {', '.join(missing)}; for the firmware run: apt-get install -y ovmf")


def run_async(coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Run a coroutine in the event loop of `relay`, and return its result."""
    return asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, timeout_s), relay.event_loop()).result()


def _end(
    process: subprocess.Popen[bytes],
    log: IO[bytes],
    channels: Iterable[Sequence[Any]],
    cgroup: cgroups.Cgroup,
    user: users.UserClaim | None,
) -> None:
    """End the machine, from any thread. `channels`: QMP's clients, and the sockets, which only the loop may close."""
    monitors, agents, ends = channels

    async def hang_up() -> None:
        for client in (*monitors, *agents):
            with contextlib.suppress(Exception):
                await client.disconnect()
        for end in ends:
            end.close()

    process.kill()  # bubblewrap, with which its process namespace ends
    try:
        process.wait(EXIT_TIMEOUT_S)
        _await_end(log)
    except subprocess.TimeoutExpired:
        logger.warning("a machine's processes did not end within %g s after they were killed", EXIT_TIMEOUT_S)
    finally:
        asyncio.run_coroutine_threadsafe(hang_up(), relay.event_loop())
        log.close()
        cgroup.close()
        if user is not None:
            user.close()


def _await_end(log: IO[bytes]) -> None:
    """Wait until no process has the pipe's other end: the last one is gone, and with it memory and ports."""
    poller = select.poll()
    poller.register(log, select.POLLIN)
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    while poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
        if log.read(_PIPE_BYTES) == b"":
            return
    raise subprocess.TimeoutExpired("QEMU", EXIT_TIMEOUT_S)


_alive: weakref.WeakSet[VirtualMachine] = weakref.WeakSet()


def _forget_after_fork() -> None:
    """Keep a fork of the owner from ending its machines."""
    for machine in list(_alive):
        machine._finalizer.detach()
        machine._cgroup.forget()
        if machine._user is not None:
            machine._user.close()


os.register_at_fork(after_in_child=_forget_after_fork)
