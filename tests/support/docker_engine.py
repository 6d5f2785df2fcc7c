"""A real Docker engine of the tests' own, in namespaces that end with it: processes, mounts and network.

It never meets an engine of this machine. Its bridge, its iptables rules, its published ports and `ip_forward` belong to
a network namespace that the calling thread enters with it, and with the thread whatever is started from it; its
containers, shims and mounts belong to namespaces whose process 1 ends when this process does, whatever ends that.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from arpo_verl.desktops.embedded import packages
from arpo_verl.lib import relay

CLONE_NEWNET = 0x40000000
START_TIMEOUT_S = 90.0
ADDRESS = "172.31.0.1/24"
CGROUPS, CGROUP = Path("/sys/fs/cgroup"), "arpo-verl-tests-"
# Process 1: it does what it is told on its standard input and ends with it, and the kernel kills all the rest.
PROCESS_1 = """
mount -t tmpfs tmpfs /run
while read -r word; do
    case $word in
        start) "$@" & pid=$! ;;
        kill) kill -KILL $pid; wait $pid ;;
    esac
    echo done
done
"""


class DockerEngine:
    """`dockerd` with a folder, a socket and a network of its own. Starts at once; `close` leaves nothing behind."""

    def __init__(self, folder: Path):
        self.socket = folder / "docker.sock"
        self.host = f"unix://{self.socket}"
        self.log = folder / "log"
        options = {
            "--data-root": folder / "data",
            "--exec-root": folder / "exec",
            "--pidfile": folder / "pid",
            "--host": self.host,
            "--bip": ADDRESS,
            "--cgroup-parent": f"/{CGROUP}{os.getpid()}",
            "--exec-opt": "native.cgroupdriver=cgroupfs",
            "--log-level": "warn",
        }
        command = ["dockerd", *(f"{name}={value}" for name, value in options.items())]
        # A mount that this machine makes meanwhile, or this engine, is the other's no business.
        namespaces = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._folder = folder
        self._log = self.log.open("ab")
        self._process = subprocess.Popen(
            [*namespaces, "sh", "-c", PROCESS_1, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "DOCKER_RAMDISK": "1"},  # pivot_root needs a root that is a mount of its own; not ours
            start_new_session=True,
        )
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the engine, again after `kill`, and wait until it answers.

        It gives its containerd a fixed time and ends then, on a busy machine too soon: it is started once more.
        """
        import docker

        begins = self.log.stat().st_size
        self._tell("start")
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return docker.DockerClient(self.host, version="auto").close()
            except docker.errors.DockerException as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no engine within {START_TIMEOUT_S:g} s: {self.log.read_text()}") from error
            if b"timeout waiting for containerd" in self.log.read_bytes()[begins:]:
                begins = self.log.stat().st_size
                self._tell("start")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL to the engine alone; its containers' own processes live on."""
        self._tell("kill")

    def processes(self) -> set[str]:
        """Names of all that runs in it, beside the engine itself: shims, proxies of ports, containers' own."""
        import psutil

        running = set()
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if process.status() != psutil.STATUS_ZOMBIE:  # process 1 collects the dead when it has time
                    running.add(process.name())
        return running - {"sh", "dockerd", "containerd"}

    def close(self) -> None:
        """End everything in it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(START_TIMEOUT_S)
        self._process.stdout.close()
        self._log.close()
        _remove_cgroups()
        shutil.rmtree(self._folder)

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()
        self._process.stdout.readline()


def _remove_cgroups() -> None:
    """Those of this process's engines, and of processes that are no more: the kernel keeps the empty folders."""
    for pattern in (f"{CGROUP}*", f"*/{CGROUP}*"):  # version 2, version 1
        for root in CGROUPS.glob(pattern):
            pid = int(root.name.removeprefix(CGROUP))
            if pid == os.getpid() or not Path(f"/proc/{pid}").exists():
                for folder, _, _ in os.walk(root, topdown=False):
                    os.rmdir(folder)


def why_not() -> str:
    """Why no engine can be started here; empty where one can."""
    missing = packages.missing_packages(packages.DOCKER)
    if missing:
        return f"not installed: {', '.join(missing)}; run: {packages.install_command(missing)}"
    if os.geteuid() != 0:
        return "a Docker engine needs root"
    done = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    return f"root may not make namespaces here: {done.stderr.strip()}" if done.returncode else ""


def end_guards() -> None:
    """End the reapers of this process's containers: with the engine gone they would look for it for minutes."""
    import psutil

    from arpo_verl.desktops.osworld import docker_containers

    for pipe in docker_containers._guards:
        pipe.close()
    docker_containers._guards.clear()
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if docker_containers.this_owner() in command and any(word.endswith("docker_reaper") for word in command):
            with suppress(psutil.NoSuchProcess):  # it has ended by itself
                process.kill()


@contextmanager
def own_network() -> Iterator[None]:
    """This thread, and all that it starts, in a network namespace of its own with nothing but a loopback."""
    library = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as before:
        if library.unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            if library.setns(before.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")


@contextmanager
def own_relay() -> Iterator[None]:
    """Desktops are relayed in a thread that stays in the network in which it was started: one for this network."""
    before, relay._running = relay._running, None
    try:
        yield
    finally:
        if relay._running is not None:
            relay._running[1].call_soon_threadsafe(relay._running[1].stop)
        relay._running = before


@contextmanager
def docker_engine() -> Iterator[DockerEngine]:
    """An engine in this thread's own network, `DOCKER_HOST` naming it."""
    with own_network(), own_relay():
        engine = DockerEngine(Path(tempfile.mkdtemp(prefix="arpo-docker-")))
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = engine.host
        try:
            yield engine
        finally:
            end_guards()
            engine.close()
            del os.environ["DOCKER_HOST"]
            if before is not None:
                os.environ["DOCKER_HOST"] = before
