"""What a test starts ends with pytest, however pytest ends: else a stock trainer keeps a core busy for hours."""

import os
import select
import signal
import subprocess
import sys

import pytest
from support import ROOT, take_interrupts

INNER = """
import subprocess, time

def test_that_waits():
    subprocess.Popen(["sh", "-c", "setsid sleep 600 & echo process $!; exec sleep 600"], start_new_session=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_that_a_test_started_outlives_pytest(tmp_path, number):
    (tmp_path / "test_inner.py").write_text(INNER)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-s",
        "-p",
        "conftest",
        "--rootdir",
        tmp_path,
        tmp_path / "test_inner.py",
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    options = {"stdout": subprocess.PIPE, "text": True, "cwd": tmp_path, "preexec_fn": take_interrupts}
    with subprocess.Popen(command, env=environ, **options) as inner:
        pid = next(int(line.split()[-1]) for line in inner.stdout if "process " in line)
        started = os.pidfd_open(pid)
        inner.send_signal(number)
        ended, _, _ = select.select([started], [], [], 600)
        os.close(started)
    assert ended
