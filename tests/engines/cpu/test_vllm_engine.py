"""A real engine whose processes share images: its weights change and requests are aborted, then a process is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.desktop_harness import eventually

pytestmark = pytest.mark.vllm

SHARED = Path("/dev/shm")
SCRIPT = ROOT / "tests" / "support" / "vllm_engine.py"
DIFFERENT = 0.01


@pytest.fixture
def start(python_path, policy, tmp_path):
    """Starts an engine, and returns its process with what it found."""
    started = []

    def play(updates: int) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "VERL_PLATFORM": "cpu", "VLLM_LOGGING_LEVEL": "ERROR"}
        with open(tmp_path / "log", "w") as log:
            command = [python_path, SCRIPT, policy, str(updates)]
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        started.append(process)
        line = next((line for line in process.stdout if line.startswith("{")), None)
        assert line, (tmp_path / "log").read_text()[-4000:]
        return process, json.loads(line)

    yield play
    for process in started:
        process.kill()
        process.wait()


def shared_by(processes):
    """Files in /dev/shm that these have mapped, by their inode: a semaphore is mapped before it has its name."""
    maps = [line.split() for pid in processes for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    inodes = {fields[4] for fields in maps if len(fields) > 5 and fields[5].startswith(str(SHARED))}
    return {path for path in SHARED.iterdir() if str(path.stat().st_ino) in inodes}


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# The longest part is an engine's start, so the updates are some of the kills'.
@pytest.mark.parametrize(("killed", "updates"), [("VLLM::Worker", 50), ("VLLM::EngineCore", 0), ("vllm_engine.py", 0)])
def test_no_request_sees_anothers_picture_and_nothing_is_left(start, killed, updates):
    process, answers = start(updates)
    found = answers["found"]
    assert answers["nearest"] > DIFFERENT, "another picture, or other weights, must show in the answer"
    assert not found.get("wrong")
    assert answers["read"]
    if answers["cache"] == "shm":  # vLLM's own forget all pictures when weights change
        assert [times for _, times in answers["read"]] == [1] * len(answers["read"])
    if updates:
        assert min(found[how] for how in ("cancelled", "aborted", "answered")) > updates / 5

    processes = {int(pid): command for pid, command in answers["processes"].items()}
    shared = shared_by(processes)
    assert shared
    trackers = [pid for pid, command in processes.items() if "resource_tracker" in command]
    (victim,) = [pid for pid, command in processes.items() if killed in command]
    for pid in (*trackers, victim):  # Ray ends Python's trackers too
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: process.poll() is not None)
    eventually(lambda: not any(map(is_alive, processes)))
    eventually(lambda: not any(path.exists() for path in shared))
