"""Ray's workers as forks: what a fork is, how it ends, and a Ray that takes its workers from there."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.desktop_harness import eventually

from arpo_verl.cpu.warm_workers import CLIENT

SERVER = """
import os, socket, sys
from arpo_verl.cpu.worker_server import WorkerServer
WorkerServer(socket.socket(fileno=int(sys.argv[1])), os.pidfd_open(int(sys.argv[2]))).run()
"""
SCRIPT = """
import os, signal, sys
print(sys.argv, __name__, os.getcwd(), os.environ.get("A"), os.environ.get("HOME"), os.getppid(), flush=True)
if sys.argv[1] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "wait":
    signal.pause()
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def server(tmp_path):
    """A server that has imported nothing, and its socket."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        fd = listener.fileno()
        words = [sys.executable, "-c", SERVER, str(fd), str(os.getpid())]
        process = subprocess.Popen(words, pass_fds=[fd])
    yield process, path
    process.kill()
    process.wait()


def start(path: str, tmp_path: Path, argument: str, **options) -> subprocess.Popen:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [sys.executable, "-I", "-S", str(CLIENT), path, str(script), argument]
    return subprocess.Popen(words, env={"A": "ü"}, cwd=tmp_path, stdout=subprocess.PIPE, text=True, **options)


def test_a_fork_is_the_process_that_was_asked_for(server, tmp_path):
    process, path = server
    for status in (0, 7):
        client = start(path, tmp_path, str(status))
        said = f"['{tmp_path}/script.py', '{status}'] __main__ {tmp_path} ü None {process.pid}\n"
        assert client.communicate(timeout=60)[0] == said
        assert client.returncode == status
    client = start(path, tmp_path, "die")
    client.communicate(timeout=60)
    assert client.returncode == 128 + signal.SIGKILL


def test_who_kills_the_one_kills_the_other_and_nobody_else(server, tmp_path):
    process, path = server
    clients = [start(path, tmp_path, "wait", preexec_fn=os.setpgrp) for _ in range(2)]
    for client in clients:
        client.stdout.readline()
    forks = psutil.Process(process.pid).children()
    assert {os.getpgid(fork.pid) for fork in forks} == {client.pid for client in clients}
    clients[0].kill()
    eventually(lambda: len(psutil.Process(process.pid).children()) == 1)
    os.killpg(clients[1].pid, signal.SIGTERM)  # as Ray ends a worker
    eventually(lambda: not psutil.Process(process.pid).children())
    for client in clients:
        client.communicate(timeout=60)
    assert process.poll() is None


def test_a_server_ends_with_its_owner(tmp_path):
    path = str(tmp_path / "socket")
    owner = subprocess.Popen(["sleep", "60"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        words = [sys.executable, "-c", SERVER, str(listener.fileno()), str(owner.pid)]
        process = subprocess.Popen(words, pass_fds=[listener.fileno()])
    owner.kill()
    assert process.wait(60) == 0
    owner.wait()


def test_what_is_no_order_is_not_obeyed(server, tmp_path):
    process, path = server
    for content in (b"", b"\0" * 8, (1 << 40).to_bytes(8, "big"), (5).to_bytes(8, "big") + b"{}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(path)
            client.sendall(content)
    client = start(path, tmp_path, "0")
    client.communicate(timeout=60)
    assert client.returncode == 0 and process.poll() is None


def test_without_a_server_a_worker_starts_by_itself(tmp_path):
    client = start("/nonexistent/socket", tmp_path, "3", stderr=subprocess.PIPE)
    out, err = client.communicate(timeout=60)
    assert client.returncode == 3 and out.startswith(f"['{tmp_path}/script.py', '3'] __main__")
    assert "imports all by itself" in err


RAY = """
import os, ray
from arpo_verl.cpu.warm_workers import py_executable
ray.init(address="local", num_cpus=2, include_dashboard=False, runtime_env={"py_executable": py_executable()})

@ray.remote(num_cpus=0)
class Actor:
    def facts(self):
        import sys, numpy, torch
        return os.getppid(), "verl" in sys.modules, torch.get_num_threads(), float(numpy.random.random())

    def die(self):
        os._exit(1)

actors = [Actor.remote() for _ in range(3)]
facts = ray.get([actor.facts.remote() for actor in actors])
servers, warm, threads, drawn = map(set, zip(*facts))
assert len(servers) == 1 and warm == {True} and threads == {1} and len(drawn) == 3, facts
try:
    ray.get(actors[0].die.remote())
except ray.exceptions.ActorDiedError:
    print("died")
ray.kill(actors[1])
assert ray.get(actors[2].facts.remote())[0] in servers
print("server", *servers)
"""


@pytest.mark.trainer
def test_rays_workers_are_forks_of_one_process_that_ends_with_ray():
    environment = {**os.environ, "VERL_PLATFORM": "cpu"}
    done = subprocess.run([sys.executable, "-c", RAY], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    died, server = done.stdout.splitlines()[-2:]
    assert died == "died"
    eventually(lambda: not psutil.pid_exists(int(server.split()[1])), 60)
