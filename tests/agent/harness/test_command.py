"""A command costs its own episode alone: bounded, without privilege, and gone with all that it started."""

import asyncio
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from support.desktop_harness import PATIENCE_S, eventually, until

from arpo_verl.agent.harness import command
from arpo_verl.agent.harness.command import run_command
from arpo_verl.desktops.embedded import cgroups, users
from arpo_verl.errors import ConfigError, HarnessError
from arpo_verl.lib import relay

pytestmark = [
    pytest.mark.desktop,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]


@pytest.fixture(params=["another user", "user namespace"])
def who(request, monkeypatch):
    """The command's user, as root has it and as others have it."""
    if request.param == "another user" and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    if request.param == "user namespace":
        monkeypatch.setattr(users, "available_ids", lambda: None)
    return request.param


async def played(source, *, environment=None, **options):
    values = {"log": None, "memory_mb": 512, "log_mb": 1, **options}
    return await run_command([sys.executable, "-c", source], environment or {}, **values)


def ended(source, **options):
    return asyncio.run(played(source, **options))


def is_alive(mark):
    """Whether a process with this word in its command line is there, a zombie excepted."""
    found = [each.info for each in psutil.process_iter(["cmdline", "status"])]
    return any(mark in (info["cmdline"] or []) and info["status"] != psutil.STATUS_ZOMBIE for info in found)


@pytest.fixture
def mark():
    """The argument of a `sleep` that no other one has."""
    return f"100000.{secrets.randbelow(10**12)}"


def test_it_runs_without_privilege_on_files_that_it_can_only_read(who, tmp_path, monkeypatch):
    """It has the environment that it was given, its own memory to write to, and what its words name to read."""
    monkeypatch.setenv("HOST_SECRET", "swordfish")
    program = tmp_path / "agent.py"
    program.write_text(
        "import os, pathlib, sys, arpo_verl\n"
        "for folder in (os.environ['HOME'], '/tmp', '/dev/shm'): pathlib.Path(folder, 'mine').write_text('x')\n"
        "for path in (__file__, '/etc/passwd', os.getcwd() + '/x'):\n"
        "    try: open(path, 'a')\n"
        "    except OSError: continue\n"
        "    sys.exit(f'could write {path}')\n"
        "tasks = pathlib.Path(arpo_verl.__file__).parent / 'tasks'\n"
        "print(os.getuid(), sorted(os.environ), os.environ['TASK'], list(tasks.iterdir()), sys.argv[1:])\n"
    )
    program.chmod(0o644)
    log = tmp_path / "harness.log"
    environment = {"TASK": "Press the key.", "PYTHONPATH": str(Path(users.__file__).parents[3])}
    tmp_path.chmod(0o755)
    end = asyncio.run(
        run_command([sys.executable, str(program), "word"], environment, log=log, memory_mb=512, log_mb=1)
    )
    assert (end.returncode, end.reason) == (0, "")
    said = log.read_text()
    assert end.log_tail == said.strip() and "swordfish" not in said and "HOST_SECRET" not in said
    assert "Press the key. [] ['word']" in said
    if who == "another user":
        assert int(said.split()[0]) > 1000


def test_bubblewrap_s_process_1_tells_it_no_secret_and_is_no_way_around_the_filter(who, monkeypatch):
    """In a user namespace that has the command's user, so the command may read its environment and write its memory."""
    monkeypatch.setenv("HOST_SECRET", "swordfish")
    source = (
        "import pathlib\n"
        "print('Seccomp:\\t2' in pathlib.Path('/proc/1/status').read_text())\n"
        "print(pathlib.Path('/proc/self/oom_score_adj').read_text())\n"
        "try: print(pathlib.Path('/proc/1/environ').read_bytes())\n"
        "except PermissionError: print('refused')\n"
    )
    said = ended(source).log_tail
    assert said.split()[0] == "True" and int(said.split()[1]) >= 500
    assert "swordfish" not in said and "HOST_SECRET" not in said
    assert ("refused" in said) == (who == "another user")


@pytest.mark.parametrize(
    "source, returncode", [("raise SystemExit(65)", 65), ("1 / 0", 1), ("import os; os.abort()", -6)]
)
def test_its_end_says_how_it_ended(source, returncode):
    end = ended(source)
    assert (end.returncode, end.reason) == (returncode, "")
    assert ("ZeroDivisionError" in end.log_tail) == (source == "1 / 0")


def test_a_flood_of_output_ends_it_and_the_log_is_bounded(tmp_path):
    log = tmp_path / "harness.log"
    end = ended("while True: print('\\x1b[2Jx' * 1000)", log=log, log_mb=0.5)
    assert end.reason == "it said more than 0.5 MB" and end.returncode != 0
    assert log.stat().st_size == 500_000 and len(end.log_tail) <= 2000 and "\x1b" not in end.log_tail


TAKEN = {
    "of its own": "x = bytearray(10**9)",
    "of many processes": "for _ in range(3):\n"
    "    if not os.fork(): x = bytearray(150 * 2**20); time.sleep(60); os._exit(0)\n"
    "assert not any(os.wait()[1] for _ in range(3))",
    "shared": "import mmap; x = mmap.mmap(-1, 10**9); [x.write(bytes(2**20)) for _ in range(900)]; time.sleep(60)",
    "in files": "open('/tmp/large', 'wb').write(bytes(300 * 2**20))",
    "in files that no process maps": "held = [open(os.memfd_create('x'), 'wb').write(bytes(2**28)) for _ in range(4)]",
    "of System V": "import ctypes; c = ctypes.CDLL(None); c.shmat.restype = ctypes.c_void_p; "
    "n = c.shmget(0, ctypes.c_ulong(10**9), 0o1600); assert n >= 0; ctypes.memset(c.shmat(n, None, 0), 1, 10**9)",
    "of a process whose first thread has ended": "import ctypes, mmap, threading\n"
    "def hold():\n"
    "    large = mmap.mmap(-1, 10**9)\n"
    "    for _ in range(900): large.write(bytes(2**20))\n"
    "    time.sleep(60)\n"
    "threading.Thread(target=hold).start()\n"
    "ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\n",
}


@pytest.mark.parametrize("bounded_by", ["control group", "us"])
@pytest.mark.parametrize("source", TAKEN.values(), ids=TAKEN)
def test_more_memory_than_it_may_have_ends_it(who, monkeypatch, source, bounded_by):
    """Where this machine offers no control groups, memory that no process maps had no bound."""
    if bounded_by == "us":
        monkeypatch.setattr(cgroups, "parents", list)
    elif not any(cgroups.MEMORY in parent.controllers for parent in cgroups.parents()):
        pytest.skip("this machine offers no control group")
    end = ended(f"import os, time\n{source}\nprint('has it')", memory_mb=200)
    assert end.returncode != 0 and "has it" not in end.log_tail
    assert end.reason == "it used up its memory, 200 MB" or "Error" in end.log_tail


def test_its_connections_take_few_descriptors_of_this_process(who):
    """Each takes three: as many as one command could make, 500, are half of what a process usually may have."""
    source = (
        "import contextlib, socket\n"
        "held, answered = [], 0\n"
        "for _ in range(200):\n"
        "    with contextlib.suppress(OSError): held.append(socket.create_connection(('127.0.0.1', PORT), 60))\n"
        "for each in held:\n"
        "    with contextlib.suppress(OSError): each.sendall(b'x'); answered += each.recv(1) == b'x'\n"
        "print(answered)\n"
    )

    async def play():
        async def echo(reader, writer):
            writer.write(await reader.read(1))
            await reader.read()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            return await played(source.replace("PORT", str(port)), ports=[port])

    assert asyncio.run(play()).log_tail == str(relay.MAX_CONNECTIONS)


def test_it_takes_no_terminals_of_this_machine_and_no_memory_as_devices(who):
    """All desktops of a machine share 3,072 terminals, and nothing bounds the memory of the folder of devices."""
    source = (
        "import os\n"
        "for take in (os.openpty, lambda: open('/dev/x', 'w')):\n"
        "    try: print('took', take())\n"
        "    except OSError: print('refused')\n"
    )
    assert ended(source).log_tail.split() == ["refused"] * 2


def test_a_fork_bomb_is_bounded_and_all_of_it_ends(who, mark):
    source = (
        "import subprocess\n"
        f"try:\n    for _ in range(100): subprocess.Popen(['sleep', '{mark}'])\n"
        "except OSError as error: print('refused', error)\n"
    )
    end = ended(source, pids=60)
    assert end.log_tail.startswith("refused")
    eventually(lambda: not is_alive(mark))


def test_what_it_leaves_behind_ends_with_it(who, mark):
    source = f"import subprocess; subprocess.Popen(['setsid', 'sleep', '{mark}'], stdout=subprocess.DEVNULL, stderr=-3)"
    assert ended(source).returncode == 0
    eventually(lambda: not is_alive(mark))


def test_cancelled_it_ends_with_all_that_it_started(who, mark, tmp_path):
    log = tmp_path / "harness.log"

    async def cancel():
        source = f"import signal, subprocess; signal.signal(15, signal.SIG_IGN); subprocess.run(['sleep', '{mark}'])"
        playing = asyncio.ensure_future(played(source, log=log))
        await until(lambda: is_alive(mark))
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        await until(lambda: not is_alive(mark))

    asyncio.run(cancel())


def test_it_reaches_its_own_ports_and_no_other(who):
    """Not even another episode's desktop, whose port asks for no password."""
    own, other = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    with own, other:
        threading.Thread(target=lambda: own.accept()[0].sendall(b"own"), daemon=True).start()
        ports = [listener.getsockname()[1] for listener in (own, other)]
        source = (
            "import socket\n"
            f"print(socket.create_connection(('127.0.0.1', {ports[0]})).recv(9))\n"
            f"socket.create_connection(('127.0.0.1', {ports[1]}))\n"
        )
        end = ended(source, ports=ports[:1])
        assert end.log_tail.startswith("b'own'") and "ConnectionRefusedError" in end.log_tail
        assert (
            ended(f"import socket; socket.create_connection(('127.0.0.1', {ports[1]}))", network=True).returncode == 0
        )


def test_it_sees_no_socket_of_this_machines_services(who):
    """Of the folder that has them nothing is left; a name server's file stays where it has the network."""
    source = "import os; print(os.listdir('/run'), os.path.exists('/var/run/docker.sock')); open('/etc/resolv.conf')"
    assert ended(source).log_tail.startswith("[] False")
    with_network = ended(source, network=True)
    assert with_network.returncode == 0 and "docker" not in with_network.log_tail


def test_a_program_that_is_not_there_is_an_error_of_the_recipe():
    with pytest.raises(ConfigError, match="must name a program that can be run here, got no-such-program"):
        asyncio.run(run_command(["no-such-program"], {}, log=None, memory_mb=512, log_mb=1))


def test_a_command_that_does_not_begin_costs_its_own_episode(monkeypatch):
    monkeypatch.setattr(command, "START_TIMEOUT_S", 0.0)
    with pytest.raises(HarnessError, match="did not begin within 0 s"):
        ended("pass")


def test_without_bubblewrap_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="apt-get install -y --no-install-recommends bubblewrap"):
        ended("pass")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_process_that_runs_it(number, mark):
    source = (
        "import asyncio\nfrom arpo_verl.agent.harness.command import run_command\n"
        f"asyncio.run(run_command(['setsid', 'sleep', '{mark}'], {{}}, log=None, memory_mb=512, log_mb=1))\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", source])
    try:
        eventually(lambda: is_alive(mark))
        owner.send_signal(number)
        owner.wait(PATIENCE_S)
        eventually(lambda: not is_alive(mark))
    finally:
        owner.kill()
