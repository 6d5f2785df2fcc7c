"""What a hostile program leaves behind or uses up: bounded while it runs, gone at the next reset."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess

import pytest
from support.desktop_harness import eventually

from arpo_verl.desktops.embedded import guest_process, sandbox, seccomp

pytestmark = pytest.mark.desktop

SYSTEM_V = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
def make(call, *arguments):
    made = []
    while (found := getattr(libc, call)(0, *arguments)) >= 0:
        made.append(found)
        if call == "shmget":  # a page that is touched is memory that is taken
            ctypes.memset(libc.shmat(found, None, 0), 1, 1)
    return len(made)
print(make("shmget", 16 << 20, 0o600), make("semget", 100, 0o600), make("msgget", 0o600))
"""


def test_system_v_objects_are_bounded_and_gone_at_the_next_reset(jail):
    """256 MiB of segments, 128 sets of semaphores and 32 queues where this kernel lets us say so."""
    made = list(map(int, jail.sh(f"python3 -c {shlex.quote(SYSTEM_V)}").split()))
    if jail.sh("cat /proc/sys/kernel/shmmni") == str(sandbox.SYSTEM_V["shmmni"]):
        assert made == [16, 128, 32]
    assert all(made)
    jail.provider.revert_to_snapshot()
    assert jail.sh("tail -qn +2 /proc/sysvipc/*") == ""


def test_root_can_bound_system_v_objects(jail):
    told = jail.sh("cd /proc/sys/kernel; cat shmmax shmall shmmni msgmni; cat sem | tr '\\t' ' '").splitlines()
    if told[0] != str(sandbox.SYSTEM_V["shmmax"]) and jail.sh("id -u") == "1000":
        pytest.skip("this kernel lets no user namespace's root set them; Linux 6.9 does")
    assert told == [str(sandbox.SYSTEM_V[name]) for name in ("shmmax", "shmall", "shmmni", "msgmni", "sem")]


def test_files_are_bounded_in_number_and_gone_at_the_next_reset(jail):
    """Three million empty files took 3 GiB of the kernel's memory, and the reset after them a minute."""
    told = {path: int(jail.sh(f"df --output=itotal {path} | tail -n 1")) for path in sandbox.WRITABLE}
    assert told == {path: memory.files for path, memory in sandbox.WRITABLE.items()}
    limit = sandbox.WRITABLE["/dev/shm"].files
    fill = f"n=0; while [ $n -lt {2 * limit} ] && : > /dev/shm/$n; do n=$((n + 1)); done; echo made $n"
    words = jail.sh(f"{{ {fill}; }} 2>&1").splitlines()
    assert limit / 2 < int(words[-1].split()[1]) < limit and "No space left" in words[0]
    jail.provider.revert_to_snapshot()
    assert jail.sh("ls /dev/shm | wc -l; df --output=iused /dev/shm | tail -n 1").split()[0] == "0"


def test_sizes_are_bounded(jail):
    told = {path: int(jail.sh(f"df --block-size=1M --output=size {path} | tail -n 1")) for path in sandbox.WRITABLE}
    assert told == {path: memory.mib for path, memory in sandbox.WRITABLE.items()}
    assert "No space left" in jail.sh("head -c 65M /dev/zero > /var/tmp/full")
    jail.provider.revert_to_snapshot()
    assert jail.sh("head -c 10M /dev/zero > /var/tmp/again && echo wrote") == "wrote"


def test_terminals_are_bounded(jail):
    """All desktops of a machine, and its other containers, share 3,072."""
    opened = (
        "import os\nn = 0\ntry:\n    while n < 4000:\n        os.openpty()\n        n += 1\nexcept OSError: print(n)"
    )
    limit = f"ulimit -n $(ulimit -Hn); python3 -c {shlex.quote(opened)}"
    assert int(jail.sh(limit)) <= sandbox.MAX_TERMINALS


def test_keys_and_message_queues_are_refused(jail):
    """Keyrings are kept by user and queues by namespace, so both outlived a reset."""
    source = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def key(): return libc.syscall(NUMBER, b"user", b"name", b"payload", 7, ctypes.c_int(-4))
def queue(): return libc.mq_open(b"/q", 66, 0o600, None)
for call in (key, queue):
    print("made" if call() >= 0 else errno.errorcode[ctypes.get_errno()])
"""
    number = seccomp.ABSENT["add_key"][platform.machine() == "aarch64"]
    assert jail.sh(f"python3 -c {shlex.quote(source.replace('NUMBER', str(number)))}").split() == ["ENOSYS", "ENOSYS"]


def test_signals_stay_inside(jail):
    with subprocess.Popen(["sleep", "60"]) as victim:
        jail.sh(f"kill -9 {victim.pid}; kill -9 -- -{os.getpgid(victim.pid)}; kill -9 -- -1; true")
        assert victim.poll() is None
        victim.kill()
    jail.provider.revert_to_snapshot()
    assert jail.controller.get_screenshot()


FORGED = """
import ctypes, os, signal
info = (ctypes.c_int * 32)(signal.SIGTERM, 0, -1, 0, 0)  # si_signo, si_errno, si_code, padding, si_pid
assert ctypes.CDLL(None).syscall(129, 1, signal.SIGTERM, info) == 0  # rt_sigqueueinfo of x86-64
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of the system call is x86-64's")
def test_nobody_forges_a_signal_from_outside(jail, monkeypatch):
    monkeypatch.setattr(guest_process, "_out_of_memory_kills", lambda: 0)  # another test's would leave no proof
    jail.provider.revert_to_snapshot()
    jail.sh(f"python3 -c {shlex.quote(FORGED)}; kill -9 -- -1")
    eventually(lambda: (ended := jail.provider.why_down()) and ended.is_proof)  # once all are dead
