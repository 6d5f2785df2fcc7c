"""Shared memory whose maker was killed goes; what is another's stays."""

import dataclasses
import os
import select
import signal
import subprocess
import sys
from multiprocessing import shared_memory
from types import ModuleType
from unittest.mock import Mock

import pytest
from support import ROOT
from support.desktop_harness import eventually
from tqdm import tqdm

from arpo_verl import versions
from arpo_verl.engines.upstream_patches import IMAGE_CACHES, SEGMENTS
from arpo_verl.engines.vllm import segments as vllm_segments
from arpo_verl.engines.vllm.segments import FOLDER, reporting

# As vLLM's class: made without a name, opened with one and unknown to Python's resource tracker, which would remove it.
MAKER = """
import sys
from multiprocessing import resource_tracker, shared_memory
from types import ModuleType
from unittest.mock import patch
from arpo_verl.engines.upstream_patches import SEGMENTS
from arpo_verl.engines.vllm.segments import reporting

class ShmRingBuffer:
    def __init__(self, name=None):
        self.is_creator = name is None
        track = resource_tracker.register if self.is_creator else lambda *args: None
        with patch.object(resource_tracker, "register", track):
            self.shared_memory = shared_memory.SharedMemory(name, create=self.is_creator, size=64)

module = ModuleType("stand_in")
module.ShmRingBuffer = ShmRingBuffer
SEGMENTS.apply(module, reporting)
SEGMENTS.apply(module, reporting)
buffers = [module.ShmRingBuffer(), module.ShmRingBuffer(), module.ShmRingBuffer(sys.argv[1])]
print(*(buffer.shared_memory.name for buffer in buffers), resource_tracker._resource_tracker._pid, flush=True)
sys.stdin.read()
"""


PARENT = """
import multiprocessing, os, signal
from arpo_verl.engines.vllm.segments import end_with_parent

def child():
    end_with_parent()
    print(os.getpid(), flush=True)
    signal.pause()

multiprocessing.get_context("fork").Process(target=child).start()
signal.pause()
"""


def test_a_process_ends_with_the_one_that_started_it():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    child = os.pidfd_open(int(parent.stdout.readline()))
    try:
        assert not select.select([child], [], [], 0)[0]
        parent.kill()
        parent.wait()
        assert select.select([child], [], [], 300)[0]
    finally:
        parent.kill()
        os.close(child)


@pytest.mark.parametrize("is_ours", [False, True])
def test_only_a_vllm_of_a_run_of_ours_is_changed(is_ours, monkeypatch):
    monkeypatch.setenv("ARPO_VERL_RUN", str(int(is_ours)))
    changed = []
    for owner, name in ((tqdm, "set_lock"), (vllm_segments, "end_with_parent"), (vllm_segments, "patch")):
        monkeypatch.setattr(owner, name, lambda *_, name=name: changed.append(name))
    vllm_segments.register()
    assert changed == (["set_lock", "end_with_parent", "patch"] if is_ours else [])


def start_maker(opened):
    command = [sys.executable, "-c", MAKER, opened]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def test_segments_of_a_killed_maker_go_and_those_that_it_opened_stay():
    others = shared_memory.SharedMemory(create=True, size=64)
    maker = start_maker(others.name)
    try:
        first, second, opened, tracker = maker.stdout.readline().split()
        assert opened == others.name and all((FOLDER / name).exists() for name in (first, second))
        # As Ray does at a job's end: the children of a worker first, Python's own resource tracker among them.
        os.kill(int(tracker), signal.SIGKILL)
        assert (FOLDER / first).exists()
        maker.kill()
        maker.wait()
        eventually(lambda: not any((FOLDER / name).exists() for name in (first, second)))
        assert (FOLDER / others.name).exists()
    finally:
        maker.kill()
        others.close()
        others.unlink()


class _Made:
    def __init__(self):
        self.is_creator = True
        self.shared_memory = shared_memory.SharedMemory(create=True, size=64)


def test_an_engine_starts_where_nothing_can_be_removed_after_it(monkeypatch, caplog):
    stand_in = ModuleType("stand_in")
    stand_in.ShmRingBuffer = _Made
    SEGMENTS.apply(stand_in, reporting)
    monkeypatch.setattr(vllm_segments.reaper, "_tell", Mock(side_effect=OSError("no shell")))
    segment = stand_in.ShmRingBuffer().shared_memory
    try:
        assert f"{segment.name} stays if this process is killed" in caplog.text
    finally:
        segment.close()
        segment.unlink()


@pytest.mark.parametrize(
    ("installed", "is_patched"),
    [
        ("0.11.0", False),  # EasyR1's has no methods of these names: its processes would end when they import them
        ("0.24.0+cpu", True),
        (None, True),
        ("0.32.0", False),  # its own caches are enough, and elsewhere
    ],
)
def test_a_vllm_has_our_caches_where_it_needs_them(installed, is_patched, monkeypatch):
    def version(package):
        if installed is None:
            raise versions.metadata.PackageNotFoundError(package)
        return installed

    monkeypatch.setattr(versions.metadata, "version", version)
    methods = [name.partition(".")[2] for name in IMAGE_CACHES.names] if is_patched else []
    module = ModuleType("stand_in")
    module.MultiModalRegistry = type("MultiModalRegistry", (), dict.fromkeys(methods, "vLLM's"))
    patch = dataclasses.replace(IMAGE_CACHES, module="vllm.stand_in", _ours={})
    vllm_segments._apply(patch, lambda name, upstream: "ours", module)
    assert all(vars(module.MultiModalRegistry)[name] == "ours" for name in methods)
    assert SEGMENTS.is_needed()
