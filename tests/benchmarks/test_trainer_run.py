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


TOO_LATE, TAKEN = "Ray timed out during startup", "port: 1, code: -98, name: EADDRINUSE"


@pytest.mark.parametrize(
    ("lines", "starts"),
    [
        (f"mkdir once 2>/dev/null && echo '{TOO_LATE}' && exit 1; echo trained", 2),
        (f"mkdir once 2>/dev/null && echo '{TAKEN}' && exit 1; echo trained", 2),
        (f"echo '{TAKEN}'; echo trained", 1),
    ],
)
def test_a_trainer_whose_ray_did_not_start_in_time_or_whose_port_was_taken_is_started_again(
    start, tmp_path, lines, starts
):
    run = start(f"echo again >> starts; {lines}")
    run.wait(timeout_s=60)
    assert run.output().endswith("trained\n") and (tmp_path / "starts").read_text() == "again\n" * starts


def test_one_that_fails_otherwise_is_not_and_its_last_words_are_told(start, tmp_path):
    run = start("echo again >> starts; echo no such recipe; exit 1")
    with pytest.raises(RuntimeError, match="ended badly:\nno such recipe"):
        run.wait(timeout_s=60)
    with pytest.raises(RuntimeError, match="too early"):
        run.wait_for(lambda: False)
    assert (tmp_path / "starts").read_text() == "again\n"


def test_nothing_of_a_stopped_run_is_left(start):
    run = start("sleep 600 & echo child; wait")
    run.wait_for(lambda: "child" in run.output(), timeout_s=60)
    with pytest.raises(TimeoutError, match="within 0.2 s"):
        run.wait_for(lambda: False, timeout_s=0.2)
    processes = run.processes()
    began = time.monotonic()
    assert await_end(processes, timeout_s=0.1) and time.monotonic() - began < 30, "they go on"
    run.stop()
    assert await_end(processes, timeout_s=0) == []
    assert run.has_ended() and run.processes() == []
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
