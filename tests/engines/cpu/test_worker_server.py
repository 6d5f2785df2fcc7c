"""Ray's workers as forks: what a fork is, how it ends, and a Ray that takes its workers from there."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from omegaconf import OmegaConf
from support.desktop_harness import eventually
from trainer_run import await_end

from arpo_verl.engines.cpu.warm_workers import CLIENT, WarmWorkers

SERVER = """
import os, socket, sys
from arpo_verl.engines.cpu import worker_server
worker_server.GRACE_S = 0.1
listener, owner = socket.socket(fileno=int(sys.argv[1])), os.pidfd_open(int(sys.argv[2]))
worker_server.WorkerServer(listener, owner, {"A": "a", "B": "b"}).run()
"""
SCRIPT = """
import os, signal, sys, threading, time
print(sys.argv, __name__, os.getcwd(), os.environ.get("A"), os.environ.get("HOME"), os.getppid(), flush=True)
if sys.argv[1] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "wait":
    signal.pause()
if sys.argv[1] == "path":
    print(sys.path[:2], os.environ["B"], flush=True)
    sys.argv[1] = 0
if sys.argv[1] == "thread":
    threading.Thread(target=lambda: (time.sleep(0.5), print("a thread ended", flush=True))).start()
    sys.exit("the main one ended")
if sys.argv[1] == "close":
    sys.stdout.close()
    sys.exit(7)
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


def start(path: str, tmp_path: Path, argument: str, environ=(), **options) -> subprocess.Popen:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [sys.executable, "-I", "-S", str(CLIENT), path, str(script), argument]
    return subprocess.Popen(
        words, env={"A": "ü", **dict(environ)}, cwd=tmp_path, stdout=subprocess.PIPE, text=True, **options
    )


def test_a_fork_is_the_process_that_was_asked_for(server, tmp_path):
    process, path = server
    for status in (0, 7):
        client = start(path, tmp_path, str(status))
        said = f"['{tmp_path}/script.py', '{status}'] __main__ {tmp_path} ü None {process.pid}\n"
        assert client.communicate(timeout=300)[0] == said
        assert client.returncode == status
    client = start(path, tmp_path, "die")
    client.communicate(timeout=300)
    assert client.returncode == 128 + signal.SIGKILL


def test_a_fork_begins_and_ends_as_an_interpreter_does(server, tmp_path):
    _, path = server
    client = start(path, tmp_path, "path", {"PYTHONPATH": "/of/this/actor"})
    assert client.communicate(timeout=300)[0].splitlines()[1] == f"['{tmp_path}', '/of/this/actor'] b"
    client = start(path, tmp_path, "thread", stderr=subprocess.PIPE)
    out, err = client.communicate(timeout=300)
    assert client.returncode == 1 and out.endswith("a thread ended\n") and err == "the main one ended\n"
    client = start(path, tmp_path, "close", stderr=subprocess.PIPE)
    assert client.communicate(timeout=300)[1] == "" and client.returncode == 7


def test_what_imports_set_in_the_environment_is_told(tmp_path):
    (tmp_path / "sets.py").write_text("import os\nos.environ['SET_BY_IMPORT'] = '1'\n")
    code = "from arpo_verl.engines.cpu import worker_server\nworker_server.PRELOAD = ('sets',)\n"
    code += "assert worker_server.preload()['SET_BY_IMPORT'] == '1'"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, env=environ)


def test_forks_of_who_imported_a_class_of_actors_draw_ids_of_their_own(tmp_path):
    (tmp_path / "acts.py").write_text("import ray\n\n@ray.remote\nclass Actor:\n    pass\n")
    code = """
import os
from arpo_verl.engines.cpu import worker_server
worker_server.PRELOAD = ("acts",)
worker_server.preload()
from ray._raylet import JobID, PlacementGroupID
for _ in range(2):
    if os.fork() == 0:
        print(PlacementGroupID.of(JobID.from_int(1)).hex(), flush=True)
        os._exit(0)
    os.wait()
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=300, env=environ, stdout=subprocess.PIPE)
    assert len({*done.stdout.split()}) == 2


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
        client.communicate(timeout=300)
    assert process.poll() is None


def test_a_server_ends_with_its_owner_and_its_forks_with_it(tmp_path):
    path = str(tmp_path / "socket")
    owner = subprocess.Popen(["sleep", "600"])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        words = [sys.executable, "-c", SERVER, str(listener.fileno()), str(owner.pid)]
        process = subprocess.Popen(words, pass_fds=[listener.fileno()])
    client = start(path, tmp_path, "wait")
    client.stdout.readline()
    (fork,) = psutil.Process(process.pid).children()
    owner.kill()  # not collected yet
    assert process.wait(300) == 0
    assert not await_end([fork], 300)
    client.communicate(timeout=300)
    owner.wait()


def test_what_is_no_order_is_not_obeyed(server, tmp_path):
    process, path = server
    for content in (b"", b"\0" * 8, (1 << 40).to_bytes(8, "big"), (5).to_bytes(8, "big") + b"{}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(path)
            client.sendall(content)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(path)
        socket.send_fds(client, [(2).to_bytes(8, "big")], [0, 1, 2])
        client.sendall(b"no")
    client = start(path, tmp_path, "0")
    client.communicate(timeout=300)
    assert client.returncode == 0 and process.poll() is None


def test_without_a_server_a_worker_starts_by_itself(tmp_path):
    client = start("/nonexistent/socket", tmp_path, "3", stderr=subprocess.PIPE)
    out, err = client.communicate(timeout=300)
    assert client.returncode == 3 and out.startswith(f"['{tmp_path}/script.py', '3'] __main__")
    assert "imports all by itself" in err
    raylet = subprocess.Popen(["true"])
    raylet.wait()
    client = start("/nonexistent/socket", tmp_path, "3", {"RAY_RAYLET_PID": str(raylet.pid)})
    assert client.communicate(timeout=300)[0] == "" and client.returncode == 1


def test_who_has_threads_does_not_fork():
    code = "import threading\nfrom arpo_verl.engines.cpu.worker_server import require_one_thread as check\ncheck()\n"
    code += "threading.Thread(target=threading.Event().wait, daemon=True).start()\ncheck()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "started 1 threads" in done.stderr


def test_a_run_with_a_ray_of_its_own_gets_them_unless_it_names_an_interpreter(monkeypatch):
    def told(address: str, executable: str | None, engine: str = "transformers") -> str | None:
        ray_init = {"address": address, "runtime_env": {"py_executable": executable}}
        rollout = {"rollout": {"name": engine}}
        config = OmegaConf.create({"ray_kwargs": {"ray_init": ray_init}, "actor_rollout_ref": rollout})
        WarmWorkers().on_run_start(config)
        return config.ray_kwargs.ray_init.runtime_env.py_executable

    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    monkeypatch.setenv("RAY_worker_register_timeout_seconds", "60")  # else it stays set
    assert str(CLIENT) in told("local", None)
    assert told("local", "python3.11") == "python3.11"
    assert told("auto", None) is None
    assert told("local", None, "vllm") is None
    monkeypatch.setenv("VERL_PLATFORM", "cuda")
    assert told("local", None) is None


RAY = """
import os, ray, sys, time
from pathlib import Path
from arpo_verl.engines.cpu.warm_workers import py_executable
executable = py_executable(Path(sys.argv[1]))
ray.init(address="local", num_cpus=2, include_dashboard=False, runtime_env={"py_executable": executable})

@ray.remote(num_cpus=0)
class Actor:
    def facts(self):
        import sys, numpy, torch
        from concurrent.futures import ThreadPoolExecutor
        from ray._raylet import JobID, PlacementGroupID
        with ThreadPoolExecutor(1) as executor:
            self.kept = executor.submit(ray.put, os.getpid()).result()
        drawn = float(numpy.random.random()), torch.initial_seed()
        ids = self.kept.hex(), PlacementGroupID.of(JobID.from_int(1)).hex()
        return os.getppid(), "verl" in sys.modules, torch.get_num_threads(), *drawn, *ids

    def die(self):
        os._exit(1)

    def spin(self):
        while True:
            pass

actors = [Actor.remote() for _ in range(3)]
facts = ray.get([actor.facts.remote() for actor in actors])
servers, warm, threads, *drawn = map(set, zip(*facts))
assert len(servers) == 1 and warm == {True} and threads == {1}, facts
assert [len(values) for values in drawn] == [3] * 4, facts
try:
    ray.get(actors[0].die.remote())
except ray.exceptions.ActorDiedError:
    pass
else:
    sys.exit("it lives")
ray.kill(actors[1])
assert ray.get(actors[2].facts.remote())[0] in servers
actors[2].spin.remote()
print("server", *servers, flush=True)
time.sleep(600)
"""


def is_client(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # those of the actors that were killed may just be ending
        return str(CLIENT) in process.cmdline()
    return False


@pytest.mark.release
@pytest.mark.trainer
def test_rays_workers_are_forks_of_one_process_and_nothing_is_left_when_ray_is_killed(tmp_path):
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        words = [sys.executable, "-c", RAY, folder]
        environment = {**os.environ, "VERL_PLATFORM": "cpu", "RAY_worker_register_timeout_seconds": "600"}
        driver = psutil.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
        try:
            said = next((line for line in driver.stdout if line.startswith("server")), "nothing")
            server = psutil.Process(int(said.split()[1]))
            (raylet,) = [process for process in driver.children() if process.name() == "raylet"]
            processes = {*driver.children(recursive=True), server, *server.children()}
            clients = [process for process in raylet.children() if is_client(process)]
            ours = [*clients, *server.children(), server]
            assert len(ours) >= 3
            raylet.kill()
            assert not await_end(ours, 60)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.communicate()
        assert not await_end([*processes], 60)
