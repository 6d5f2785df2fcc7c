"""However its owner ends, and whoever is killed, nothing of a desktop or of a sandbox host is left."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from support.desktop_harness import attach, eventually, process_tree

from arpo_verl.desktops.embedded import cgroups
from arpo_verl.desktops.embedded.provider import EmbeddedProvider
from arpo_verl.desktops.osworld.task_files import PREFIX

pytestmark = pytest.mark.desktop

OWNER = """
import os, signal, sys, tempfile, threading, time
from pathlib import Path
# A shell without job control has its background commands ignore Ctrl-C, and their children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
from arpo_verl.desktops.embedded import cgroups, users
if {user!r}: users.available_ids = lambda: None  # as who is not root has it
from arpo_verl.lib.files import ScratchFolder
if not {groups}: cgroups.parents = lambda: []
folder = ScratchFolder(Path(tempfile.gettempdir()), {prefix!r}).path
if {kind!r} == "verdict":
    from arpo_verl.desktops.osworld.verdict.sandbox_host import SandboxHost
    host = SandboxHost(); host.await_ready(); sandbox = host.take_sandbox()  # it waits for its request
    group = cgroups.Cgroup(cgroups.Limits()); sandbox.process.move_to(group)
    bubblewrap, first = host.pid, sandbox.process.pid
else:
    from arpo_verl.desktops.embedded.provider import EmbeddedProvider
    provider = EmbeddedProvider()
    provider.start_emulator()
    guest = provider._guest
    bubblewrap, first, group = guest._template.pid, guest._process.pid, guest._cgroup
print(bubblewrap, first, folder, *group.folders, flush=True)
if {kind!r} == "close":
    sys.stdin.readline()
    provider.stop_emulator()
{then}
"""


class Owner:
    """A process with a desktop, or with a sandbox host and a sandbox."""

    def __init__(
        self,
        kind: str,
        as_root: bool = True,
        groups: bool = True,
        prefix: Sequence[str] = (),
        then: str = "sys.stdin.readline()",
    ):
        source = OWNER.format(user=not as_root, groups=groups, kind=kind, prefix=PREFIX, then=then)
        self.process = subprocess.Popen([*prefix, sys.executable, "-c", source], stdin=-1, stdout=-1, text=True)
        assert self.process.stdout is not None
        bubblewrap, first, folder, *self.groups = self.process.stdout.readline().split()
        self.bubblewrap, self.first, self.folder = int(bubblewrap), int(first), Path(folder)
        self.template = psutil.Process(self.bubblewrap).children()[0].pid
        # The template goes on when one of its desktops is closed.
        self.processes = [
            psutil.Process(pid) for pid in process_tree(self.first if kind == "close" else self.bubblewrap)
        ]
        # Open: else the next desktop on this machine, of other tests, would get the number of one that has ended.
        self.namespace = os.open(f"/proc/{first}/ns/net", os.O_RDONLY)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def left(self) -> list[object]:
        processes = [process for process in self.processes if _runs(process)]
        paths = [path for path in map(Path, self.groups) if path.exists()]
        return [*processes, *paths, *_in_namespace(os.fstat(self.namespace).st_ino)]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.namespace)


def _runs(process: psutil.Process) -> bool:
    """A dead one is collected by its owner's next look at it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _await_nothing_left(owner: Owner) -> None:
    eventually(lambda: not owner.left())


def _in_namespace(number: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found += [str(path)] if path.stat().st_ino == number else []
        except OSError:
            pass
    return found


OFTEN = {
    ("desktop", "owner", "none", True, True),
    ("desktop", "owner", "first", False, False),
    ("desktop", "bubblewrap", "first", True, True),
    ("desktop", "template", "none", True, False),
}
ROWS = [
    pytest.param(*row, marks=[] if row in OFTEN else pytest.mark.release)
    for kind in ("desktop", "verdict")
    for killed in ("owner", "bubblewrap", "template")
    for stopped in ("none", "first", "template")
    for as_root, groups in ((True, True), (True, False), (False, False))
    if killed != stopped
    for row in [(kind, killed, stopped, as_root, groups)]
]


@pytest.mark.parametrize("kind, killed, stopped, as_root, groups", ROWS)
def test_nothing_is_left_after_a_kill(kind, killed, stopped, as_root, groups):
    if as_root and os.geteuid() != 0:
        pytest.skip("not root")
    if groups and not cgroups.parents():
        pytest.skip("this machine offers us no cgroup")
    owner = Owner(kind, as_root, groups)
    try:
        assert len(owner.processes) >= (3 if kind == "verdict" else 7) and bool(owner.groups) == groups
        if stopped != "none":
            os.kill(getattr(owner, stopped), signal.SIGSTOP)
        _kill(owner, kind, killed)
    finally:
        owner.end()


def _kill(owner: Owner, kind: str, killed: str) -> None:
    """Kill a part of it, and wait until nothing is left."""
    os.kill({"owner": owner.process.pid}.get(killed) or getattr(owner, killed), signal.SIGKILL)
    if killed != "owner":  # the groups go when the owner replaces what died
        owner.groups = []
    _await_nothing_left(owner)
    if killed == "owner":
        eventually(lambda: not owner.folder.exists())


@pytest.mark.parametrize(
    "then",
    [
        "pass",
        "raise RuntimeError",
        "os._exit(3)",
        "del provider; time.sleep(0.1)",
        "threading.Timer(0.03, os._exit, [1]).start(); guest.boot(provider.screen_size, 1, 9)",
        "child = os.fork() or sys.stdin.readline(); os._exit(0)",
        "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)",
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)",
    ],
    ids=["ends", "raises", "exits", "forgets it", "in the middle of a boot", "has a fork", "SIGINT", "SIGTERM"],
)
def test_nothing_is_left_of_an_owner_that_ends_by_itself(then):
    owner = Owner("desktop", then=f"sys.stdin.readline(); {then}")
    owner.go_on()
    _await_nothing_left(owner)
    owner.end()


def test_a_desktop_outlives_the_thread_that_started_it():
    provider = EmbeddedProvider()
    thread = threading.Thread(target=provider.start_emulator)
    thread.start()
    thread.join()
    try:
        assert attach(provider).controller.get_screenshot() and provider.is_alive()
    finally:
        provider.stop_emulator()


OTHER_USER = 12_345
AS_OTHER_USER = f"""
exec 3< "$1"
if [ "$2" ]; then
    mount -t tmpfs -o mode=755 none "$2" && mkdir -p "$1" && mount -c --bind /proc/self/fd/3 "$1" || exit
fi
shift 2
exec env HOME=/ setpriv --reuid {OTHER_USER} --regid {OTHER_USER} --clear-groups "$@" 3<&-
"""


def _as_other_user() -> list[str]:
    """Begins a command line that another user runs. Where root alone may enter a folder above this Python, that user
    has another one in its place, with the Python alone in it."""
    closed = [path for path in reversed(Path(sys.base_prefix).parents) if not path.stat().st_mode & stat.S_IXOTH]
    return ["unshare", "--mount", "sh", "-c", AS_OTHER_USER, "sh", sys.base_prefix, *map(str, closed[:1] or [""])]


@pytest.mark.parametrize(
    "kind, killed",
    [
        pytest.param(kind, killed, marks=[] if (kind, killed) == ("desktop", "owner") else pytest.mark.release)
        for kind in ("desktop", "verdict")
        for killed in ("owner", "bubblewrap", "template")
    ],
)
def test_nothing_is_left_of_another_users(kind, killed):
    """Root may look at all processes and kill them; who is not root has to do without."""
    if os.geteuid() != 0:
        pytest.skip("not root")
    prefix = _as_other_user()
    if subprocess.run([*prefix, "unshare", "--user", sys.executable, "-c", ""]).returncode != 0:
        pytest.skip("this machine lets no other user have namespaces, or this Python")
    owner = Owner(kind, as_root=False, groups=True, prefix=prefix)
    try:
        assert {process.uids().real for process in owner.processes} == {OTHER_USER}
        _kill(owner, kind, killed)
    finally:
        owner.end()


@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("as_root", [True, False])
def test_a_desktop_whose_first_process_is_stopped_is_closed_whole(as_root, groups):
    if as_root and os.geteuid() != 0:
        pytest.skip("not root")
    if groups and (not as_root or not cgroups.parents()):
        pytest.skip("no cgroup for us")
    owner = Owner("close", as_root, groups)
    os.kill(owner.first, signal.SIGSTOP)
    owner.go_on()
    _await_nothing_left(owner)
    owner.process.communicate("\n")
    eventually(lambda: not owner.folder.exists())
    owner.end()


def test_a_sandbox_whose_owner_is_killed_while_it_is_made_is_ended_too():
    """bubblewrap's second process waits for its first one then, and is no child of anybody's; here a shell is it."""
    source = (
        "import sys\n"
        "from arpo_verl.desktops.embedded.process import start_sandbox\n"
        "shell = 'sleep 1234 & echo $!; wait'\n"
        "start_sandbox(['setsid', '-f', 'sh', '-c', shell], [], sys.stdout)\n"
        "sys.stdin.readline()\n"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdin=-1, stdout=-1, text=True) as owner:
        assert owner.stdout is not None
        left = psutil.Process(int(owner.stdout.readline()))
        assert left.is_running()
        owner.kill()
        eventually(lambda: not _runs(left))
