"""Bounds of a desktop's memory, processors and processes: kept by this machine's cgroups, and gone with the desktop."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.desktop_harness import eventually, running, sandbox_processes

from arpo_verl.desktops.embedded import cgroups, guest_process
from arpo_verl.desktops.embedded.cgroups import Cgroup, Limits, Parent

OFFERED = {controller for parent in cgroups.parents() for controller in parent.controllers}


def needs(controller):
    return pytest.mark.skipif(controller not in OFFERED, reason=f"this machine offers us no cgroup for {controller}")


@pytest.mark.desktop
def test_all_of_a_desktop_is_in_its_groups_which_go_with_it():
    with running() as desktop:
        group, processes = desktop.provider._guest._cgroup, sandbox_processes(desktop.provider)
        assert group.controllers == OFFERED
        for folder in (folders := group.folders):
            assert set(processes) <= set(map(int, (folder / "cgroup.procs").read_text().split()))
        assert desktop.provider._guest.own_oom_kills() == 0
    assert not any(folder.exists() for folder in folders)


@needs("cpu")
def test_a_group_that_another_desktops_end_removes_meanwhile_is_made_again(monkeypatch):
    real, gone = cgroups._write, [errno.ENODEV, errno.ENOENT]

    def write(path, value):
        if path.parent.name == cgroups.ALL_DESKTOPS and gone:
            raise OSError(gone.pop(), "")  # the first is what the kernel says of a file that was open
        real(path, value)

    monkeypatch.setattr(cgroups, "_write", write)
    group = Cgroup(Limits())
    assert group.controllers == OFFERED
    group.close()


@needs("memory")
@pytest.mark.desktop
def test_a_program_that_takes_all_memory_is_killed_and_the_host_can_tell():
    with running(memory_mib=256) as desktop:
        assert desktop.sh("""python3 -c 'b"x" * (1 << 30)'; echo $?""").endswith("137")
        guest = desktop.provider._guest
        assert desktop.controller.get_screenshot() and guest.own_oom_kills() > 0
        assert guest_process._out_of_memory_kills() > guest._out_of_memory_kills
        assert not desktop.provider.why_gone()
        with pytest.MonkeyPatch.context() as patch:  # a group above, or the machine, had no more
            patch.setattr(guest._cgroup, "memory_met", lambda: guest._met_at_boot)
            assert guest.own_oom_kills() == 0 and "this host" in desktop.provider.why_gone()
        desktop.provider.revert_to_snapshot()
        assert desktop.provider._guest.own_oom_kills() == 0


MANY = """
import os, time
open("/home/user/full", "wb").write(bytes(150 << 20))
while True:
    if os.fork() == 0:
        kept = bytearray(b"x") * (4 << 20)
        time.sleep(600)
"""


@needs("memory")
@pytest.mark.desktop
def test_programs_that_use_up_all_memory_end_their_desktop_themselves(monkeypatch):
    """Many small ones: the largest program that the kernel finds to kill is process 1."""
    monkeypatch.setattr(guest_process, "_out_of_memory_kills", lambda: 0)  # another test's would leave no proof
    with running(memory_mib=256) as desktop:
        desktop.setup._launch_setup(["python3", "-c", MANY])
        eventually(lambda: not desktop.provider.is_alive())
        ended = desktop.provider.why_down()
        assert ended.is_proof and "memory" in ended.cause


@needs("memory")
@pytest.mark.desktop
def test_files_in_memory_count():
    with running(memory_mib=256) as desktop:
        desktop.setup._launch_setup("cat /dev/zero > ~/full", shell=True)
        eventually(desktop.provider._guest.own_oom_kills)
        desktop.provider.revert_to_snapshot()
        assert desktop.sh("ls ~/full") != "/home/user/full" and desktop.controller.get_screenshot()


@needs("pids")
@pytest.mark.desktop
def test_a_fork_bomb_meets_its_own_limit_and_the_next_reset():
    with running(pids=100) as desktop, running() as neighbour:
        desktop.setup._launch_setup("bomb() { bomb | bomb & }; bomb", shell=True)
        eventually(lambda: _refused(desktop.provider._guest._cgroup))
        assert neighbour.sh("echo fine") == "fine"
        desktop.provider.revert_to_snapshot()
        assert desktop.sh("echo fine") == "fine" and not _refused(desktop.provider._guest._cgroup)


def _refused(group):
    """Whether it has refused a process."""
    counted = [folder / "pids.events" for folder in group.folders]
    return any(file.read_text() != "max 0\n" for file in counted if file.exists())


@needs("cpu")
@pytest.mark.desktop
def test_processors_are_bounded_and_shared_by_desktop():
    with running(cpus=0.3) as desktop:
        group = desktop.provider._guest._cgroup
        folder = next(f for f, p in zip(group.folders, group.parents, strict=True) if cgroups.CPU in p.controllers)
        desktop.setup._launch_setup("for n in 1 2 3; do while :; do :; done & done", shell=True)
        eventually(lambda: "nr_throttled 0" not in (folder / "cpu.stat").read_text())
        weight = (folder / "cpu.shares", "1024") if (folder / "cpu.shares").exists() else (folder / "cpu.weight", "100")
        assert weight[0].read_text().strip() == weight[1]


@pytest.mark.desktop
def test_where_there_is_no_group_each_program_has_a_limit(monkeypatch):
    monkeypatch.setattr(cgroups, "parents", lambda: [])
    with running(memory_mib=256) as desktop:
        assert "MemoryError" in desktop.sh("python3 -c 'bytes(1 << 30)'")
        assert desktop.sh("ulimit -u") == "1024"


OWNER = """
import sys
from pathlib import Path
from arpo_verl.desktops.embedded.cgroups import *
group = Cgroup(Limits(), [Parent(Path(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3].split()))])
print(*group.folders, flush=True)
sys.stdin.read()
"""


def real_parents():
    """This machine's hierarchies, and version 2 without controllers, which most machines of version 1 have too."""
    found = cgroups.parents()
    for _, place, _, folder in cgroups._mounts(Path("/proc/self"), {}):
        if (place / "cgroup.controllers").exists() and 2 not in {parent.version for parent in found}:
            found.append(Parent(folder, 2, ()))
    return found


@pytest.mark.parametrize("parent", real_parents(), ids=lambda parent: "+".join(parent.controllers) or "v2")
def test_groups_of_a_killed_owner_are_swept_with_what_runs_in_them_and_no_others(parent):
    if not cgroups._is_ours(parent.folder):
        pytest.skip("not root")
    words = [sys.executable, "-c", OWNER, str(parent.folder), str(parent.version), " ".join(parent.controllers)]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as owner:
        (left,) = map(Path, owner.stdout.readline().split())
        enter = f"echo 0 > {shlex.quote(str(left))}/cgroup.procs && exec sleep 600"
        survivor = subprocess.Popen(["sh", "-c", enter])
        eventually(lambda: str(survivor.pid) in (left / "cgroup.procs").read_text().split())
        alive = Cgroup(Limits(), [parent])
        assert left.is_dir() and alive.folders[0].is_dir() and alive.folders[0] != left, "its owner lives"
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    Cgroup(Limits(), [parent]).close()
    eventually(lambda: not left.exists())  # another process's sweep may be at it, and ours leaves it to that
    assert survivor.wait(60) == -signal.SIGKILL
    (folder,) = alive.folders
    alive.close()
    alive.close()
    assert not folder.exists()


def test_a_fork_of_the_owner_neither_removes_its_groups_nor_holds_them():
    if not (offered := [parent for parent in real_parents() if cgroups._is_ours(parent.folder)]):
        pytest.skip("this machine offers us no cgroup")
    group = Cgroup(Limits(), offered[:1])
    (folder,), (ours, theirs) = group.folders, socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        group.forget()
        group.close()
        theirs.send(b"forgot")
        theirs.recv(1)
        os._exit(0)
    theirs.close()
    assert ours.recv(10) == b"forgot" and folder.is_dir()
    for lock in group._locks:  # as the owner's end would
        lock.close()
    group._locks = []
    cgroups.sweep(offered[0])
    eventually(lambda: not folder.exists())  # by this sweep, or by another process's that came first
    ours.close()
    assert os.waitpid(pid, 0)[1] == 0


# --- What version 2 looks like on machines that this one is not -------------------------------------------------------


class Tree:
    """Folders and files as the kernel keeps them for version 2, with a process in one of its groups."""

    def __init__(self, root: Path, own: str, given: dict[str, str], mount_root: str = "/"):
        self.root, self.process = root / "cgroup", root / "proc"
        for path in {"/", own, *given}:
            for folder in reversed((Path(path), *Path(path).parents)):
                self.make(self.root / str(folder).lstrip("/"))
        for path, controllers in given.items():
            for name in ("cgroup.subtree_control", "cgroup.controllers"):
                (self.root / path.lstrip("/") / name).write_text(controllers)
        (self.root / "cgroup.type").unlink()
        self.process.mkdir()
        (self.process / "cgroup").write_text(f"0::{own if mount_root == '/' else mount_root + own}\n")
        line = f"31 23 0:28 {mount_root} {self.root} rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
        (self.process / "mountinfo").write_text(f"23 1 8:1 / / rw - ext4 /dev/sda1 rw\n{line}")

    def make(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        for name in ("cgroup.procs", "cgroup.controllers", "cgroup.subtree_control", "cgroup.kill", "memory.max"):
            (folder / name).write_text("")
        for name in ("memory.swap.max", "cpu.max", "pids.max"):
            (folder / name).write_text("")
        (folder / "cgroup.type").write_text("domain\n")
        (folder / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")
        (folder / "pids.events").write_text("max 7\n")

    def write(self, path: Path, value: str) -> None:
        if path.name == "cgroup.subtree_control":
            assert value.startswith("+")
            value = f"{path.read_text()} {value[1:]}".strip()
        assert path.is_file()
        path.write_text(value)


ALL = "cpuset cpu io memory pids"
SESSION = "/user.slice/user-0.slice/session-1.scope"
SERVICE = "/user.slice/user-1000.slice/user@1000.service"


def test_version_2_takes_the_nearest_group_that_hands_controllers_on(tmp_path):
    tree = Tree(tmp_path, SESSION, {"/": ALL, "/user.slice": "memory pids", "/user.slice/user-0.slice": "memory pids"})
    assert cgroups.parents(tree.process) == [Parent(tree.root, 2, ("memory", "cpu", "pids"))]
    (tree.root / "user.slice/user-0.slice/cgroup.subtree_control").write_text(ALL)
    (found,) = cgroups.parents(tree.process)
    assert found.folder == tree.root / "user.slice/user-0.slice"


def test_version_2_of_a_container_whose_processes_are_at_the_top_offers_nothing(tmp_path):
    tree = Tree(tmp_path, "/", {"/": ""})
    (tree.root / "cgroup.type").write_text("domain\n")
    (tree.root / "cgroup.controllers").write_text(ALL)
    assert cgroups.parents(tree.process) == []
    (tree.root / "cgroup.type").unlink()  # the machine's own top
    assert cgroups.parents(tree.process) == [Parent(tree.root, 2, ("memory", "cpu", "pids"))]


def test_version_2_below_a_mount_of_a_part_of_it(tmp_path):
    tree = Tree(tmp_path, "/job", {"/": "memory pids"}, mount_root="/kubepods/pod1")
    assert cgroups.parents(tree.process) == [Parent(tree.root, 2, ("memory", "pids"))]
    tree.root.joinpath("cgroup.type").write_text("domain threaded\n")
    assert cgroups.parents(tree.process) == []


def test_version_2_gets_its_limits_and_tells_what_met_them(tmp_path, monkeypatch):
    tree = Tree(tmp_path, SERVICE + "/app", {"/": ALL, SERVICE: "memory pids cpu"})

    def mkdir(path):
        os.mkdir(path)
        tree.make(Path(path))

    monkeypatch.setattr(cgroups, "os", SimpleNamespace(**{**vars(os), "mkdir": mkdir}))
    monkeypatch.setattr(cgroups, "END_TIMEOUT_S", 0.0)  # no `rmdir` takes this tree's files along, as the kernel's does
    monkeypatch.setattr(cgroups, "_write", tree.write)
    (parent,) = cgroups.parents(tree.process)
    group = Cgroup(Limits(512, 1.5, 300), [parent])
    (folder,) = group.folders
    names = ("memory.max", "memory.swap.max", "cpu.max", "pids.max")
    assert [(folder / name).read_text() for name in names] == [str(512 << 20), "0", "150000 100000", "300"]
    assert folder.parent == tree.root / f"{SERVICE.lstrip('/')}/arpo_verl"
    assert (folder.parent / "cgroup.subtree_control").read_text() == "memory cpu pids"
    assert group.memory_met() == 3
    assert group.oom_kills() == 2 and group.doors == [folder / "cgroup.procs"]
    group.forget()
    unbounded = Cgroup(Limits(cpus=None), [parent])
    assert (unbounded.folders[0] / "cpu.max").read_text() == ""
    unbounded.forget()
