"""Task files: fetched once on a host by whoever comes first, never half, and results of two desktops never mixed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter

import pytest
from support.desktop_harness import eventually
from support.http_server import Server

from arpo_verl.desktops.osworld import task_files
from arpo_verl.desktops.osworld.task_files import DownloadStore, TaskFiles, downloads_of
from arpo_verl.errors import DesktopSetupError, TaskError
from arpo_verl.types import Task

BODY = b"".join(b"line %d\n" % number for number in range(16_000))
HALF = len(BODY) // 2
PROCESSES = 4
WAIT_S = 600


class SlowServer(Server):
    """Sends half of each file, waits for `go`, and sends the rest."""

    def __init__(self):
        self.requests = Counter()
        self.go = threading.Event()
        self.faults = {}
        """{path: responses that go wrong, first ones first: a status, or "short" for a body that ends early}"""
        super().__init__(self._send)

    def _send(self, handler, body):
        self.requests[handler.path] += 1
        faults = self.faults.get(handler.path, [])
        fault = faults.pop(0) if faults else None
        with contextlib.suppress(OSError):  # the client was killed
            handler.answer(fault if isinstance(fault, int) else 200, BODY[:HALF], Content_Length=len(BODY))
            handler.wfile.flush()
            self.go.wait(WAIT_S)
            if fault is None:
                handler.wfile.write(BODY[HALF:])

    def await_requests(self, count):
        eventually(lambda: sum(self.requests.values()) >= count)


@pytest.fixture
def server():
    with SlowServer() as server:
        yield server
        server.go.set()


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch, tmp_path):
    monkeypatch.setattr(task_files, "RETRY_S", 0.0)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))


def task_of(server):
    source = {"url": f"{server.url}/in", "path": "/home/user/a b"}
    spec = {
        "config": [{"type": "download", "parameters": {"files": [source]}}],
        "evaluator": {
            "func": ["f", "f"],
            "result": [{"type": "vm_file", "path": "/a", "dest": "a"}] * 2,
            "expected": [
                {"type": "cloud_file", "path": f"{server.url}/gold", "dest": "gold.txt"},
                {"type": "cloud_file", "path": [f"{server.url}/gold"], "dest": ["gold.txt"], "multi": True},
            ],
        },
    }
    return Task("t1", "do it", spec)


# What a worker process does for an episode; it says when it is done, and keeps its folder until its input ends.
WORKER = """
import json, sys
from pathlib import Path
from arpo_verl.desktops.osworld.task_files import TaskFiles
from arpo_verl.types import Task

files = TaskFiles(Path(sys.argv[1]), "one")
print(files.folder, flush=True)
files.begin(Task("t1", "", json.loads(sys.argv[2])))
(files.folder / "t1" / "result").write_text(str(files.folder))
print("ready", flush=True)
sys.stdin.read()
files.remove()
"""


def start_worker(store, task):
    command = [sys.executable, "-c", WORKER, str(store), json.dumps(task.spec)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_that_set_up_the_same_task_at_once_fetch_each_file_once(server, tmp_path):
    task, store = task_of(server), tmp_path / "store"
    workers = [start_worker(store, task) for _ in range(PROCESSES)]
    folders = [worker.stdout.readline().strip() for worker in workers]
    server.await_requests(1)
    assert not any(path.name.endswith(("gold.txt", "_a b")) for path in store.rglob("*")), "not whole yet"
    server.go.set()
    assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * PROCESSES
    assert server.requests == {"/in": 1, "/gold": 1}
    names = [download.name for download in downloads_of(task.spec)]
    assert len(names) == 2 and names[0].endswith("_a b") and names[1] == "gold.txt"
    assert len(set(folders)) == PROCESSES
    for folder in folders:
        seen = {path.name: path.read_bytes() for path in (tmp_path / "tmp" / folder / "t1").iterdir()}
        assert seen == {names[0]: BODY, names[1]: BODY, "result": folder.encode()}, "each its own results"
    for worker in workers:
        worker.communicate(timeout=WAIT_S)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_download_that_was_killed_counts_for_nothing_and_is_fetched_anew(server, tmp_path):
    task, store = task_of(server), tmp_path / "store"
    killed = start_worker(store, task)
    folder = killed.stdout.readline().strip()
    server.await_requests(1)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    server.go.set()
    files = TaskFiles(store, "two")
    eventually(lambda: not os.path.exists(folder))  # swept here, or by what watches over the worker
    files.begin(task)
    assert server.requests["/in"] == 2
    assert all((files.folder / "t1" / one.name).read_bytes() == BODY for one in downloads_of(task.spec))
    assert not [path for path in store.rglob("*") if path.name.endswith(".part")]
    files.remove()


@pytest.mark.parametrize("fault", [503, "short"])
def test_a_download_that_fails_is_tried_again_and_then_named(server, tmp_path, fault):
    server.go.set()
    task, files = task_of(server), TaskFiles(tmp_path / "store", "one")
    server.faults["/gold"] = [fault]
    files.begin(task)
    assert server.requests["/gold"] == 2 and (files.folder / "t1" / "gold.txt").read_bytes() == BODY
    server.faults["/gold"] = [fault] * task_files.ATTEMPTS
    other = TaskFiles(tmp_path / "other", "two")
    with pytest.raises(DesktopSetupError, match="/gold could not be downloaded.*put the file at"):
        other.begin(task)
    assert not DownloadStore(tmp_path / "other").path("t1", downloads_of(task.spec)[1]).exists()
    for one in (files, other):
        one.remove()


def test_an_episode_sees_the_downloads_and_nothing_of_the_one_before(server, tmp_path):
    server.go.set()
    task, files = task_of(server), TaskFiles(tmp_path / "store", "one")
    gold = files.folder / "t1" / "gold.txt"
    files.begin(task)
    (files.folder / "t1" / "a").write_text("a result")
    gold.write_text("changed by a metric")
    files.begin(task)
    assert sorted(path.name for path in gold.parent.iterdir()) == sorted(d.name for d in downloads_of(task.spec))
    assert gold.read_bytes() == BODY and server.requests == {"/in": 1, "/gold": 1}
    task.spec["evaluator"]["expected"] = {"type": "cloud_file", "path": f"{server.url}/other", "dest": "gold.txt"}
    files.begin(task)
    assert server.requests["/other"] == 1, "the task now names another file, under the same name"
    files.remove()
    assert not files.folder.exists()


def test_a_file_put_into_the_store_by_hand_needs_no_server(server, tmp_path):
    task, store = task_of(server), DownloadStore(tmp_path / "store")
    for one in downloads_of(task.spec):
        path = store.path("t1", one)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(BODY)
    files = TaskFiles(store.folder, "one")
    files.begin(task)
    assert server.requests == {}
    files.remove()


def test_a_folder_without_locks_is_named(server, tmp_path, monkeypatch):
    def refuse(self):
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(task_files.FileLock, "__enter__", refuse)
    files = TaskFiles(tmp_path / "store", "one")
    with pytest.raises(DesktopSetupError, match="set environment.cache_dir"):
        files.begin(task_of(server))
    files.remove()


@pytest.mark.desktop
def test_osworlds_client_finds_what_was_fetched_and_fetches_nothing_itself(server, tmp_path):
    from arpo_verl.desktops.config import EnvironmentConfig
    from arpo_verl.desktops.osworld.environment import OSWorldEnvironment

    server.go.set()
    path = "/home/user/in.bin"
    spec = {
        "id": "t1",
        "instruction": "do it",
        "config": [{"type": "download", "parameters": {"files": [{"url": f"{server.url}/in", "path": path}]}}],
        "evaluator": {
            "func": "compare_text_file",
            "result": {"type": "vm_file", "path": path, "dest": "in.bin"},
            "expected": {"type": "cloud_file", "path": f"{server.url}/gold", "dest": "gold.bin"},
        },
    }
    environment = OSWorldEnvironment(EnvironmentConfig(screen_size=(320, 240), cache_dir=str(tmp_path / "store")))
    try:
        for _ in range(2):
            environment.reset(Task("t1", "do it", spec))
            assert environment.evaluate().score == 1.0
    finally:
        environment.close()
    assert server.requests == {"/in": 1, "/gold": 1}


@pytest.mark.parametrize("task_id", ["../x", "..", ".", "", "a/b", "/etc"])
def test_a_task_whose_id_leads_out_of_the_desktops_folder_is_refused(tmp_path, monkeypatch, task_id):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files = TaskFiles(tmp_path / "store", "desktop-0")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TaskError, match="must be a name that a folder may have"):
        files.begin(Task(task_id, "x", {}))
    assert sorted(tmp_path.rglob("*")) == before
    files.remove()
