"""How a trainer is started, waited for and ended; the trainer itself is a script here."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import figures
import psutil
import pytest
from trainer_run import TrainerRun, await_end

pytestmark = pytest.mark.study


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a trainer that runs these lines of shell."""

    def start(lines):
        script = tmp_path / "python"
        script.write_text(f"#!/bin/sh\ncd {tmp_path}\n{lines}\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        return TrainerRun(tmp_path / "run")

    return start


@pytest.mark.parametrize("words", ["Ray timed out during startup", "port: 1, code: -98, name: EADDRINUSE"])
def test_a_trainer_whose_ray_did_not_start_in_time_or_whose_port_was_taken_is_started_again(start, words):
    run = start(f"mkdir once 2>/dev/null && echo '{words}' && exit 1; echo trained")
    run.wait(timeout_s=60)
    assert run.output() == "trained\n"


def test_one_that_ended_well_is_not(start, tmp_path):
    start("echo again >> starts; echo code: -98, name: EADDRINUSE").wait(timeout_s=60)
    assert (tmp_path / "starts").read_text() == "again\n"


def test_one_that_fails_otherwise_is_not_and_its_last_words_are_told(start, tmp_path):
    run = start("echo again >> starts; echo no such recipe; exit 1")
    with pytest.raises(RuntimeError, match="ended badly:\nno such recipe"):
        run.wait(timeout_s=60)
    with pytest.raises(RuntimeError, match="too early"):
        run.wait_for(lambda: False)
    assert (tmp_path / "starts").read_text() == "again\n"


def test_a_moment_that_does_not_come_is_an_error(start):
    run = start("exec sleep 600")
    with pytest.raises(TimeoutError, match="within 0.2 s"):
        run.wait_for(lambda: False, timeout_s=0.2)
    run.kill()


def test_nothing_of_a_stopped_run_is_left(start, tmp_path):
    run = start("sleep 600 & echo child; wait")
    run.wait_for(lambda: "child" in run.output(), timeout_s=60)
    processes = run.processes()
    run.stop()
    assert processes and await_end(processes, timeout_s=0) == []
    assert run.has_ended() and run.processes() == []
    run.stop()


def test_processes_that_go_on_are_told(start):
    run = start("sleep 600")
    run.wait_for(lambda: bool(run.processes()), timeout_s=60)
    began = time.monotonic()
    assert await_end(run.processes(), timeout_s=0.1)
    assert time.monotonic() - began < 30
    run.stop()


def test_a_benchmark_that_is_told_to_end_leaves_no_trainer(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o755)
    benchmark = (
        f"import sys; sys.path.insert(0, {str(Path(figures.__file__).parent)!r})\n"
        "from pathlib import Path; from figures import Arguments; from trainer_run import TrainerRun\n"
        f"Arguments('').parse(); sys.executable = {str(script)!r}; run = TrainerRun(Path({str(tmp_path / 'run')!r}))\n"
        "print(run._process.pid, flush=True); run.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", benchmark], stdout=subprocess.PIPE, text=True) as process:
        trainer = psutil.Process(int(process.stdout.readline()))
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert await_end([trainer], timeout_s=60) == []
